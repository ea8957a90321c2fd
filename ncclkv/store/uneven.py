"""Uneven: a block that ranks with different numbers of batches leave at different times."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ncclkv.store.context import Component
from ncclkv.store.session import IN_UNEVEN


class Uneven(Component):
    """Makes ranks that have left the block take part in the flushes of the other ranks."""

    @contextmanager
    def block(self) -> Iterator[None]:
        """Run a block, then take part in flushes until every rank has arrived at its end."""
        engine, session, calls = self._engine, self._session, self._calls
        with session.verb("uneven"):
            calls.record("uneven")
            flushes = engine.begin_uneven()
        try:
            with session.enclosing(IN_UNEVEN):
                with calls.suspended():
                    yield
                with session.verb("uneven", allowed_inside=(IN_UNEVEN,)):
                    flushes.drain()
        except BaseException as error:
            session.mark_interrupted("uneven", error)
            raise
        finally:
            engine.end_uneven()
        session.raise_updater_error()
