"""Calls of the emulated runtime by ctypes, and Python functions as work of its streams."""

from __future__ import annotations

import ctypes
import inspect
import itertools
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from enum import IntEnum
from pathlib import Path
from typing import Any

from tests.harness.source import ROOT
from tests.nccl.emulated import control
from tests.nccl.emulated.control import library

LEGACY, PER_THREAD = 1, 2
"""Handles of the default streams, as in driver_types.h."""

BLOCKING, NON_BLOCKING = 0, 1
"""Flags of streams."""

LONG = 20.0
"""Seconds after which blocked work goes on; its test then fails."""

SOON = 0.05
"""Seconds in which unblocked work certainly runs."""


class Error(IntEnum):
    """CUDA's error codes in the tests."""

    SUCCESS = 0
    INVALID_VALUE = 1
    OUT_OF_MEMORY = 2
    INITIALIZATION = 3
    INVALID_PITCH = 12
    INVALID_DIRECTION = 21
    INVALID_DEVICE = 101
    INVALID_IMAGE = 200
    INVALID_CONTEXT = 201
    NO_BINARY = 209
    UNSUPPORTED_LIMIT = 215
    FILE_NOT_FOUND = 301
    INVALID_HANDLE = 400
    ILLEGAL_STATE = 401
    NOT_FOUND = 500
    NOT_READY = 600
    ILLEGAL_ADDRESS = 700
    PEER_ALREADY_ENABLED = 704
    PEER_NOT_ENABLED = 705
    DESTROYED = 709
    ALREADY_REGISTERED = 712
    NOT_REGISTERED = 713
    LAUNCH_FAILURE = 719
    NOT_PERMITTED = 800
    NOT_SUPPORTED = 801
    UNSUPPORTED = 900
    INVALIDATED = 901
    MERGE = 902
    UNMATCHED = 903
    UNJOINED = 904
    ISOLATION = 905
    IMPLICIT = 906
    CAPTURED_EVENT = 907
    WRONG_THREAD = 908


FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)
_numbers = itertools.count(1)
_functions: dict[int, Any] = {}


def code(name: str, *arguments: Any) -> int:
    """Call a function; return its code.  An int may be a handle."""
    wide = [ctypes.c_void_p(a) if isinstance(a, int) else a for a in arguments]
    return int(getattr(library(), name)(*wide))


def ok(name: str, *arguments: Any) -> None:
    """Call a function that must succeed."""
    got = code(name, *arguments)
    assert got == 0, f"{name}: {got}"


def made(name: str, *arguments: Any) -> int:
    """Call a function that writes a handle to its first argument; return the handle."""
    handle = ctypes.c_void_p()
    ok(name, ctypes.byref(handle), *arguments)
    return handle.value or 0


def number(name: str, *arguments: Any, type: Any = ctypes.c_int) -> Any:
    """Call a function that writes a number to its last argument; return the number."""
    value = type()
    ok(name, *arguments, ctypes.byref(value))
    return value.value


def text(name: str, error: int) -> str:
    """Call a function that returns a text."""
    function = getattr(library(), name)
    function.restype = ctypes.c_char_p
    return str(function(error).decode())


def last() -> int:
    return code("cudaGetLastError")


def function(run: Callable[[], object]) -> Any:
    """Return a C function of one pointer that calls `run`; it is never freed."""
    made_of = FUNCTION(lambda _: run())
    _functions[next(_numbers)] = made_of
    return made_of


def put(stream: int, run: Callable[[], object]) -> int:
    """Put work of the device on a stream, as libnccl does; return the code."""
    return code("emulated_enqueue", stream, function(run), None, None)


class Log(list[str]):
    """Names of work in the order of execution."""

    def put(self, stream: int, name: str) -> None:
        assert put(stream, lambda: self.append(name)) == 0


def quiet(log: list[str]) -> list[str]:
    """Return the log after a short time."""
    time.sleep(SOON)
    return list(log)


class Gate:
    """Work that blocks its stream until the gate is opened."""

    def __init__(self, *streams: int) -> None:
        self._opened = threading.Event()
        self._begun = threading.Event()
        self._late = False
        for stream in streams:
            assert put(stream, self._wait) == 0

    def _wait(self) -> None:
        self._begun.set()
        self._late = not self._opened.wait(LONG)

    def begun(self) -> None:
        """Wait until the gate blocks a stream."""
        assert self._begun.wait(LONG)

    def open(self) -> None:
        assert not self._late, "something waited for the work behind a gate"
        self._opened.set()

    def open_later(self) -> None:
        """Open the gate while this thread waits."""
        threading.Timer(0.05, self._opened.set).start()


class Things:
    """Streams, events and graphs that the end of a test destroys, and gates that it opens."""

    def __init__(self) -> None:
        self._stack = ExitStack()

    def __enter__(self) -> Things:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def stream(self, flags: int = NON_BLOCKING) -> int:
        return self._made("cudaStreamCreateWithFlags", "cudaStreamDestroy", flags)

    def event(self, flags: int = 0) -> int:
        return self._made("cudaEventCreateWithFlags", "cudaEventDestroy", flags)

    def recorded(self, stream: int) -> int:
        """Return a new event that is recorded on a stream."""
        event = self.event()
        ok("cudaEventRecord", event, stream)
        return event

    def gate(self, *streams: int) -> Gate:
        gate = Gate(*streams)
        self._stack.callback(gate.open)
        return gate

    def captured(self, stream: int) -> int:
        """End a capture, and return its graph."""
        graph = made_last("cudaStreamEndCapture", stream)
        self._stack.callback(code, "cudaGraphDestroy", graph)
        return graph

    def exec(self, graph: int) -> int:
        return self._made("cudaGraphInstantiate", "cudaGraphExecDestroy", graph, 0)

    def _made(self, create: str, destroy: str, *arguments: int) -> int:
        handle = made(create, *arguments)
        self._stack.callback(code, destroy, handle)
        return handle


def made_last(name: str, *arguments: Any) -> int:
    """Call a function that writes a handle to its last argument; return the handle."""
    return int(number(name, *arguments, type=ctypes.c_void_p) or 0)


def ended(
    run: Callable[[], None], *options: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a function of a test module in its own process, which may end with an error.

    Parameters
    ----------
    run : function
    *options : str
        Options of Python.
    **variables : str
        Environment variables.
    """
    module = f"tests.nccl.emulated.{Path(inspect.getfile(run)).stem}"
    command = f"from {module} import {run.__name__}; {run.__name__}()"
    # The process must not inherit the count of devices that the finder chose for this one.
    chosen = {"EMULATED_DEVICES_CHOSEN": ""}
    return subprocess.run(
        [sys.executable, *options, "-c", command],
        cwd=ROOT,
        env={**os.environ, **chosen, **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )


def settled_threads() -> int:
    """Return the count of the streams' threads, after those of destroyed streams have ended."""
    before = -1
    while before != (now := control.count("threads")):
        before = now
        time.sleep(0.05)
    return now


def alone(run: Callable[[], None], **variables: str) -> str:
    """Run a function of a test module in its own process; return its output."""
    process = ended(run, **variables)
    assert process.returncode == 0, process.stderr
    return process.stdout


@contextmanager
def nothing_left() -> Iterator[Things]:
    """Yield `Things`, and check that no object is left after the test."""
    kinds = ("streams", "events", "graphs", "graph_execs", "captures")
    before = [control.count(kind) for kind in kinds]
    with Things() as things:
        yield things
    ok("cudaDeviceSynchronize")
    assert [control.count(kind) for kind in kinds] == before, kinds
