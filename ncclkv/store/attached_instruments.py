"""Instruments: the objects that observe a store."""

from __future__ import annotations

from typing import Any

from ncclkv.engine.instrument import Instrument
from ncclkv.errors import UsageError
from ncclkv.store.context import Component

_FROM_COMM = {"waiting", "blocked", "device"}
"""Events whose times the communicator takes."""


class AttachedInstruments(Component):
    """Adds instruments to the events of a store, and removes them; local."""

    def add(self, instrument: Any) -> None:
        """Emit later events to an instrument."""
        with self._session.prefixing_rank():
            self._session.check("add_instrument")
            if not isinstance(instrument, Instrument):
                raise UsageError(
                    f"add_instrument takes an object of a subclass of ncclkv.Instrument, not a "
                    f"{type(instrument).__name__}; derive its class from ncclkv.Instrument"
                )
        self.attach(instrument)

    def attach(self, instrument: Instrument) -> None:
        """Emit later events to an instrument, in place of an earlier addition of it."""
        self._engine.events.remove(instrument)
        self._engine.events.add(instrument)
        self._observe()

    def remove(self, instrument: Any) -> None:
        """Emit no later event to an instrument; do nothing if it was not added."""
        self._engine.events.remove(instrument)
        self._observe()

    def _observe(self) -> None:
        """Let the communicator take times while an instrument wants them."""
        events = self._engine.events
        wanted = not _FROM_COMM.isdisjoint(events.listeners)
        self._comm.observe_waits(events if wanted else None)
