"""Captures for tests of the emulated runtime: their ends, forks, joins and launches."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable

import pytest

from tests.nccl.emulated.calls import LONG, Things, code, number, ok

GLOBAL, THREAD_LOCAL, RELAXED = 0, 1, 2
"""Modes of captures and of threads."""

NONE, ACTIVE, INVALID = 0, 1, 2
"""Statuses of streams."""

MODES = pytest.mark.parametrize("mode", [GLOBAL, THREAD_LOCAL, RELAXED])


def begin(stream: int, mode: int = GLOBAL) -> None:
    ok("cudaStreamBeginCapture", stream, mode)


def end(stream: int) -> int:
    """End a capture that must fail; return the code."""
    graph = ctypes.c_void_p(7)
    got = code("cudaStreamEndCapture", stream, ctypes.byref(graph))
    assert got
    assert graph.value is None
    assert status(stream) == NONE
    return got


def status(stream: int) -> int:
    return int(number("cudaStreamIsCapturing", stream))


def run(things: Things, graph: int) -> None:
    stream = things.stream()
    ok("cudaGraphLaunch", things.exec(graph), stream)
    ok("cudaStreamSynchronize", stream)


def in_thread(call: Callable[[], object]) -> list[object]:
    """Return the result of a call in another thread."""
    got: list[object] = []
    thread = threading.Thread(target=lambda: got.append(call()))
    thread.start()
    thread.join(LONG)
    assert not thread.is_alive()
    return got


def fork(things: Things, origin: int, *streams: int) -> None:
    event = things.recorded(origin)
    for stream in streams:
        ok("cudaStreamWaitEvent", stream, event, 0)


def join(things: Things, origin: int, *streams: int) -> None:
    for stream in streams:
        ok("cudaStreamWaitEvent", origin, things.recorded(stream), 0)


def names(version: int) -> tuple[str, str, bool]:
    """Return the names of two functions, and whether they have edges.

    CUDA 13 has one version of each function.
    """
    info, update = "cudaStreamGetCaptureInfo", "cudaStreamUpdateCaptureDependencies"
    if number("cudaRuntimeGetVersion") >= 13000:
        return info, update, True
    if version == 3:
        return f"{info}_v3", f"{update}_v2", True
    return f"{info}_v2", update, False
