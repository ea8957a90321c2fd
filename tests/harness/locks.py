"""State of a lock, as another thread sees it."""

from __future__ import annotations

import threading


def is_held(lock: threading.RLock) -> bool:
    """Return whether a lock keeps other threads out."""
    got: list[bool] = []

    def attempt() -> None:
        got.append(lock.acquire(blocking=False))
        if got[0]:
            lock.release()

    thread = threading.Thread(target=attempt)
    thread.start()
    thread.join()
    return not got[0]
