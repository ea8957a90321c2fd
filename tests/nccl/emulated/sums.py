"""Sums of all ranks for tests of the emulated NCCL, and calls in threads."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.nccl.emulated.collectives import (
    Array,
    Comm,
    Result,
    begin,
    call,
    check,
    last_error,
    unique_id,
)

SOON = 0.15
"""Seconds in which an unblocked call would have returned."""


def floats(count: int, value: float) -> Array:
    return Array(np.full(count, value, np.float32))


def ones() -> Array:
    return floats(4, 1)


def summed(comm: Comm, array: Array, stream: int | None = None) -> Result:
    """Sum an array in place."""
    return comm.all_reduce(array.pointer, array.pointer, array.size, array.dtype, stream=stream)


class Started:
    """A call in its own thread.

    Attributes
    ----------
    result : object
        None while it runs.
    """

    def __init__(self, function: Callable[[], Any]) -> None:
        self.result: Any = None
        self._thread = threading.Thread(target=self._run, args=(function,), daemon=True)
        self._thread.start()

    def _run(self, function: Callable[[], Any]) -> None:
        self.result = function()

    def hangs(self) -> bool:
        """Return whether the call is still running after a short time."""
        self._thread.join(SOON)
        return self._thread.is_alive()

    def returned(self) -> Any:
        """Wait for the call's result."""
        self._thread.join(10)
        assert not self._thread.is_alive()
        return self.result


def refused(result: Result, code: Result, *words: str) -> None:
    """Check a refusal and its text."""
    assert result == code, (result, last_error())
    for each in words:
        assert each in last_error()


def alone() -> Comm:
    """Make a communicator of one rank."""
    result, handle = begin(unique_id(), 0, 1)
    check(result)
    return Comm(handle, 0, 1)


def split(comm: Comm, color: int, key: int) -> int:
    """Split a communicator; return the handle, or 0."""
    handle = ctypes.c_void_p(1)
    integers = (ctypes.c_int(color), ctypes.c_int(key))
    check(call("ncclCommSplit", comm.handle, *integers, ctypes.byref(handle), None))
    return handle.value or 0
