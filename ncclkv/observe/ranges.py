"""Ranges: the verbs of a store as ranges of torch's profiler and of NVTX."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from ncclkv import concurrency
from ncclkv.engine.instrument import Instrument


class Ranges(Instrument):
    """Opens a range at the begin of each verb, and closes it at the end.

    Parameters
    ----------
    make : callable
        ``make(name)`` returns a range, a context manager.
    """

    def __init__(self, make: Callable[[str], AbstractContextManager[Any]]) -> None:
        self._make = make
        # Of each thread: several threads may push in an overlap block.
        self._open: dict[int, list[AbstractContextManager[Any]]] = {}

    def begun(self, name: str) -> None:
        made = self._make(f"ncclkv.{name}")
        self._open.setdefault(concurrency.get_ident(), []).append(made)
        made.__enter__()

    def verb(self, name: str, seconds: float) -> None:
        opened = self._open.get(concurrency.get_ident())
        if opened:  # not in the verb in which the ranges began
            opened.pop().__exit__(None, None, None)


def ranges() -> list[Ranges]:
    """Return an instrument for each profiler that the program has imported."""
    found = []
    if (torch := sys.modules.get("torch")) is not None:
        found.append(Ranges(torch.profiler.record_function))
    if (nvtx := sys.modules.get("nvtx")) is not None:
        found.append(Ranges(partial(nvtx.annotate, domain="ncclkv")))
    return found
