"""Guard: a block in which an error breaks a communicator."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Protocol

from ncclkv.comm.nccl.graph import Graphs
from ncclkv.errors import KVStoreError, UsageError


class Guarded(Protocol):
    """Progress of a communicator, as far as its guard uses it."""

    lock: Any

    @property
    def graphs(self) -> Graphs:
        """All graphs of the communicator."""

    def check(self) -> None:
        """Raise the error that broke the communicator."""

    def fail(self, error: KVStoreError) -> None:
        """Break the communicator."""


class Guard:
    """Context manager that locks and checks a communicator; a `KVStoreError` inside breaks it."""

    def __init__(self, progress: Guarded) -> None:
        self._progress = progress

    def __enter__(self) -> None:
        self._progress.lock.acquire()
        try:
            self._progress.check()
        except BaseException:
            self._progress.lock.release()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        try:
            # In a capture no work is in flight: a wrong call spoils the graph alone.
            spoils = self._progress.graphs.recording is not None and isinstance(error, UsageError)
            if isinstance(error, KVStoreError) and not spoils:
                self._progress.fail(error)
        finally:
            self._progress.lock.release()
