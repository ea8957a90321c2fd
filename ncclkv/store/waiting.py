"""Waiting: flushes pushes, waits for their collectives, and closes the store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from ncclkv.comm.diagnosis.call_ring import LoggedKeys
from ncclkv.engine.storage import StoredBucket
from ncclkv.errors import UsageError
from ncclkv.store.context import Component, Context
from ncclkv.store.keys import EXACT, is_list, key_list
from ncclkv.store.session import IN_UNEVEN
from ncclkv.table.registry import Key

_Target = tuple[list[Key], list[StoredBucket], LoggedKeys]
"""The keys of a call of `wait`, their buckets, and the keys in the call log."""


class Waiting(Component):
    """Completes pushes: after a verb of this component no collective of a push is in flight.

    Parameters
    ----------
    context : Context
    before_close : callable
        Called when all is flushed, while all ranks still communicate.
    """

    def __init__(self, context: Context, before_close: Callable[[], object]) -> None:
        super().__init__(context)
        self._before_close = before_close
        self._ones: dict[Key, _Target] = {}
        self._last: tuple[list[Key], _Target] | None = None
        self._merges = 0
        self._waiting = self._session.verb("wait", allowed_inside=(IN_UNEVEN,), raises=True)

    def wait_for(self, key: Any, *, blocks: bool = True) -> None:
        """Flush a key, a list of keys, or all keys, and wait until the flush is done.

        On a GPU only later work waits, and not the host, unless `blocks`.
        """
        with self._waiting:
            if key is None:
                self._wait_for_all("wait")
                return
            keys, states, logged = self._cached_target(key) or self._new_target(key)
            self._calls.record("wait", (), keys, logged)
            (self._engine.wait if blocks else self._engine.settle)(states)
            if self._context.verify is not None:
                self._context.verify.settled(keys)

    def _cached_target(self, key: Any) -> _Target | None:
        """Return the target of an earlier call with these keys, or None."""
        if self._merges != self._engine.layout.merges:  # keys have moved to other buckets
            self._merges = self._engine.layout.merges
            self._ones.clear()
            self._last = None
        if type(key) in EXACT:
            return self._ones.get(key)
        if self._last is None or not isinstance(key, (list, tuple)):
            return None
        keys, target = self._last
        return target if EXACT.issuperset(map(type, key)) and keys == list(key) else None

    def _new_target(self, key: Any) -> _Target:
        """Return a key, or a list of keys, with the buckets to wait for."""
        layout = self._engine.layout
        keys = key_list(key)
        for name in keys:
            layout.registry[name]
        target = keys, layout.buckets(keys), LoggedKeys()
        if layout.sealed:  # a bucket that a key gets later is not in the target
            if is_list(key):
                self._last = keys, target
            else:
                self._ones[keys[0]] = target
        return target

    def wait_for_ranks(self) -> None:
        """Flush all keys, and wait until every rank has arrived."""
        with self._session.verb("barrier", raises=True):
            self._wait_for_all("barrier")
            self._comm.control.barrier("kv.barrier")

    def _wait_for_all(self, verb: str) -> None:
        """Flush all keys, and wait until the flush is done."""
        self._calls.record(verb)
        self._engine.wait()
        if self._context.verify is not None:
            self._context.verify.settled()

    @contextmanager
    def uneven_block(self) -> Iterator[None]:
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

    # The end of a store

    def close_store(self) -> None:
        """Flush what was pushed, wait for all ranks, and free what the store holds.

        After a failure has broken the store, free what it holds without waiting.
        """
        session = self._session
        if session.closed:
            return
        with session.prefixing_rank():
            session.check("close")
            if session.block:
                raise UsageError(f"close was called inside {session.block}; end that first")
        if session.failure is not None:
            self._abandon(session.failure)
        else:
            with session.verb("close"):
                self._calls.record("close")
                self._engine.close()
                self._engine.events.read_device()
                self._before_close()
                self._comm.close()
            session.closed = True
            self._engine.updates.dispose(self._engine.rule)
            self._engine.events.emit("closed")
        session.raise_updater_error()

    def leave_block(self, error: BaseException | None) -> None:
        """Close the store at the end of its ``with`` block; collective, unless `error` left it."""
        if error is None:
            self.close_store()
        elif not self._session.closed:
            # The program must see the exception of the block, not a failure of the closing.
            with suppress(Exception):
                self._abandon(error)

    def _abandon(self, reason: BaseException) -> None:
        """Close without the other ranks, and send them the reason."""
        self._session.closed = True
        self._comm.abort(f"{type(reason).__name__}: {reason}")
        self._engine.updates.dispose(self._engine.rule)
        self._engine.events.emit("closed")
