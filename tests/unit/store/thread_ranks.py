"""Ranks that are threads of a unit test."""

from __future__ import annotations

import threading


def on_rank() -> int:
    """Return the rank of the calling thread."""
    return int(threading.current_thread().name.split()[-1])
