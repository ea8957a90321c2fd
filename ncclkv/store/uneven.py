"""Uneven: a block that ranks with different numbers of batches leave at different times."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ncclkv.store.context import Context
from ncclkv.store.session import IN_UNEVEN


class Uneven:
    """Lets ranks that have left the block take part in the flushes of the others."""

    def __init__(self, context: Context) -> None:
        self._context = context

    @contextmanager
    def block(self) -> Iterator[None]:
        """Run a block, then take part in flushes until every rank has arrived at its end."""
        engine, session, calls = self._context.engine, self._context.session, self._context.calls
        with session.verb("uneven"):
            calls.record("uneven")
            flushes = engine.begin_uneven()
        try:
            with session.enclosing(IN_UNEVEN):
                with calls.suspended():
                    yield
                with session.verb("uneven", allowed_inside=(IN_UNEVEN,)):
                    flushes.answer()
        except BaseException as error:
            session.mark_interrupted("uneven", error)
            raise
        finally:
            engine.end_uneven()
        self._context.raise_updater_error()
