"""Waiting: flushes what was pushed, waits until it is done, and closes the store."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from ncclkv.comm.diagnosis.call_log import LoggedKeys
from ncclkv.engine.bucket_state import BucketState
from ncclkv.errors import UsageError
from ncclkv.store.context import Context
from ncclkv.store.keys import EXACT, is_list, key_list
from ncclkv.store.session import IN_UNEVEN
from ncclkv.table.registry import Key


class _Target(NamedTuple):
    """The keys of a call of `wait`, and their buckets."""

    keys: list[Key]
    states: list[BucketState]
    logged: LoggedKeys


class Waiting:
    """Completes what was pushed; nothing of it is under way when a verb here returns."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._comm = context.comm
        self._engine = context.engine
        self._session = context.session
        self._calls = context.calls
        self._ones: dict[Key, _Target] = {}
        self._last: tuple[list[Key], _Target] | None = None
        self._waiting = context.session.verb("wait", allowed_inside=(IN_UNEVEN,))

    def wait_for(self, key: Any) -> None:
        """Flush some keys, or all, and wait until they are done."""
        with self._waiting:
            if key is None:
                self._calls.record("wait")
                self._engine.wait()
                self._verify(None)
            else:
                keys, states, logged = self._found(key) or self._new_target(key)
                self._calls.record("wait", (), keys, logged)
                self._engine.wait(states)
                if self._context.verify is not None:
                    self._verify(keys)
        if self._engine.updates.error is not None:
            self._context.raise_updater_error()

    def _found(self, key: Any) -> _Target | None:
        """Return the target of an earlier call with these keys."""
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
        target = _Target(keys, layout.buckets(keys), LoggedKeys())
        if layout.sealed:  # a bucket that a key gets later is not in the target
            if is_list(key):
                self._last = keys, target
            else:
                self._ones[keys[0]] = target
        return target

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
