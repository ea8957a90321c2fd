"""Waiting: flushes what was pushed, waits until it is done, and closes the store."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from ncclkv.errors import UsageError
from ncclkv.store.context import Context
from ncclkv.store.keys import key_list
from ncclkv.store.session import IN_UNEVEN
from ncclkv.table.registry import Key


class Waiting:
    """Completes what was pushed; nothing of it is under way when a verb here returns."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._comm = context.comm
        self._engine = context.engine
        self._session = context.session
        self._calls = context.calls
        self._waiting = context.session.verb("wait", allowed_inside=(IN_UNEVEN,))

    def wait_for(self, key: Any) -> None:
        """Flush some keys, or all, and wait until they are done."""
        with self._waiting:
            keys = None if key is None else key_list(key)
            layout = self._engine.layout
            for name in keys or ():
                layout.registry[name]
            self._calls.record("wait", read=keys or ())
            self._engine.wait(None if keys is None else layout.buckets(keys))
            self._verify(keys)
        self._context.raise_updater_error()

    def wait_for_ranks(self) -> None:
        """Flush all keys, and wait until every rank has arrived."""
        with self._session.verb("barrier"):
            self._calls.record("barrier")
            self._engine.wait()
            self._verify(None)
            self._comm.control.barrier("kv.barrier")
        self._context.raise_updater_error()

    def _verify(self, keys: Sequence[Key] | None) -> None:
        """Compare some keys, or all, between ranks, if a comparison is due."""
        verify = self._context.verify
        if verify is not None and not self._engine.uneven:
            verify.settled(keys)

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
            self._context.raise_updater_error()
            return
        with session.verb("close"):
            self._calls.record("close")
            self._engine.close()
            self._comm.close()
        session.closed = True
        self._engine.dispose()
        self._context.raise_updater_error()

    def leave_block(self, error: BaseException | None) -> None:
        """End the store's ``with`` block, which `error` has left if it is not None."""
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
        self._engine.dispose()
