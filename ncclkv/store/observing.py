"""Observing: the instruments, traces and counts of a store."""

from __future__ import annotations

from ncclkv.store.attached_instruments import AttachedInstruments
from ncclkv.store.context import Context
from ncclkv.store.counting import Counting
from ncclkv.store.tracing import Trace, Tracing

__all__ = ["Observing", "Trace"]


class Observing:
    """The parts of a store by which a program observes it."""

    def __init__(self, context: Context, name: str) -> None:
        self.instruments = AttachedInstruments(context)
        self.tracing = Tracing(context, self.instruments, name)
        self.counting = Counting(context, self.instruments, name)
