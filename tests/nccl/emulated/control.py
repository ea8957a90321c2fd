"""Controls of the emulated runtime: faults, stopped devices, counts of calls and live objects.

They act on the calling process. Names of functions are those of CUDA's headers, and of NCCL's for
the emulated NCCL.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

KINDS = (
    "streams",
    "events",
    "graphs",
    "graph_execs",
    "captures",
    "device_blocks",
    "device_bytes",
    "pinned_blocks",
    "pinned_bytes",
    "modules",
    "threads",
)
"""Kinds of live objects that are counted, in the order of ``Kind`` in emulated.h."""


@cache
def library(name: str = "libemulated_cudart.so") -> ctypes.CDLL:
    """Return one of the emulated libraries, for its C interface."""
    return ctypes.CDLL(str(Path(os.environ["EMULATED_BUILD"]) / "lib" / name))


def fail(function: str, nth: int = 1, code: int = 719, *, sticky: bool = False) -> None:
    """Let the nth call of a function from now fail.

    Parameters
    ----------
    function : str
    nth : int
        0 removes a fault; a negative count lets each call from the -nth on fail.
    code : int
        The error; 719 is cudaErrorLaunchFailure.
    sticky : bool
        Whether the device is lost: every later call then fails, too.
    """
    library().emulated_fail(function.encode(), ctypes.c_long(nth), code, int(sticky))


@contextmanager
def failing(function: str, nth: int = 1, code: int = 719) -> Iterator[None]:
    """Let calls of a function fail within the block alone."""
    fail(function, nth, code)
    try:
        yield
    finally:
        fail(function, 0, code)


def stop(device: int) -> None:
    """Let a device run no further work."""
    library().emulated_stop(device, 1)


def go_on(device: int) -> None:
    """Let a stopped device run again."""
    library().emulated_stop(device, 0)


@contextmanager
def stopped(device: int) -> Iterator[None]:
    """Let a device run no work within the block."""
    stop(device)
    try:
        yield
    finally:
        go_on(device)


def calls(function: str) -> int:
    """Return the count of a function's calls."""
    emulated_calls = library().emulated_calls
    emulated_calls.restype = ctypes.c_long
    return int(emulated_calls(function.encode()))


def count(kind: str) -> int:
    """Return the count of live objects of one of `KINDS`."""
    emulated_count = library().emulated_count
    emulated_count.restype = ctypes.c_long
    return int(emulated_count(KINDS.index(kind)))


def counts() -> dict[str, int]:
    """Return the count of live objects of each kind."""
    return {kind: count(kind) for kind in KINDS}
