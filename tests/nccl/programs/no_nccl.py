"""Replacements of NCCL and CUDA that only wait, for programs of real ranks without a GPU."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np


class NoNccl:
    """A binding whose collectives never end by themselves."""

    name, uncaptured = "no NCCL", ""

    def __init__(self) -> None:
        self.ended = threading.Event()

    def version(self) -> int:
        return 23203

    def unique_id(self) -> bytes:
        return bytes(128)

    def create(self, size: int, unique_id: bytes, rank: int, look: object) -> object:
        return object()

    def all_reduce(self, *_: object) -> None:
        return None

    def async_error(self, comm: object) -> None:
        return None

    def abort(self, comm: object) -> None:
        self.ended.set()


def streams(binding: NoNccl) -> Any:
    """Return streams whose events complete when the binding has aborted."""
    return SimpleNamespace(
        communication=1,
        current=lambda: 2,
        check_device=lambda: None,
        attach=lambda: None,
        on=lambda stream: nullcontext(),
        record=lambda stream: SimpleNamespace(done=binding.ended.is_set),
        wait=lambda stream, event: None,
        close=lambda: None,
    )


def device_array() -> Any:
    """Return host memory as an array of CuPy."""
    import cupy

    space = np.zeros(4, np.float32)
    memory = cupy.cuda.UnownedMemory(space.ctypes.data, space.nbytes, space, 0)
    return cupy.ndarray(4, np.float32, cupy.cuda.MemoryPointer(memory, 0))
