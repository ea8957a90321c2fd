"""A libnccl with scripted results."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from ncclkv.comm.nccl.library import NcclLibrary

VERSION = 22809
COMM = 4096
"""Handle of every created communicator."""

IN_PROGRESS, SYSTEM_ERROR = 7, 2


class Function:
    """A function that records its arguments, and returns the scripted result."""

    def __init__(self, script: Scripted, name: str) -> None:
        self._script, self._name = script, name
        self.argtypes: Any = None
        self.restype: Any = None

    def __call__(self, *arguments: Any) -> Any:
        return self._script.answer(self._name, arguments)


class Scripted:
    """The functions of ``nccl.h``, without a device.

    Parameters
    ----------
    *states : int
        Results of `ncclCommGetAsyncError`, poll by poll; the last one repeats.
    code : int
        Result of the functions of communicators and groups that are not in `codes`.

    Attributes
    ----------
    calls : list of tuple
        Names with arguments, without polls and texts.
    codes : dict of str to int, or to callable
        Results of functions, or callables that compute them from the arguments.
    last : bytes
        NCCL's last message.
    """

    def __init__(self, *states: int, code: int = 0) -> None:
        self.states = list(states) or [0]
        self.code = code
        self.codes: dict[str, int | Callable[..., int]] = {}
        self.calls: list[tuple[Any, ...]] = []
        self.looks = 0
        self.last = b""
        self.threads: list[int] = []
        self._functions: dict[str, Function] = {}

    def __getattr__(self, name: str) -> Function:
        if not name.startswith("nccl"):
            raise AttributeError(name)
        return self._functions.setdefault(name, Function(self, name))

    def answer(self, name: str, arguments: tuple[Any, ...]) -> Any:
        """Record a call, and return its result."""
        if name == "ncclGetVersion":
            arguments[0]._obj.value = VERSION
            return 0
        if name == "ncclGetErrorString":
            return b"words for %d" % arguments[0]
        if name == "ncclGetLastError":
            return self.last
        if name == "ncclCommGetAsyncError":
            self.looks += 1
            arguments[1]._obj.value = self.states.pop(0) if self.states[1:] else self.states[0]
            return 0
        if name == "ncclCommInitRankConfig":
            arguments[0]._obj.value = COMM
        self.calls.append((name, *arguments))
        self.threads.append(threading.get_ident())
        code = self.codes.get(name, self.code)
        return code(*arguments) if callable(code) else code

    def names(self) -> list[str]:
        """Return the names of the calls."""
        return [call[0] for call in self.calls]

    def library(self) -> NcclLibrary:
        """Return the object in the form that a binding expects."""
        return NcclLibrary(self)
