"""Overlaps: blocks in which any thread pushes, while full buckets are reduced."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from ncclkv.arguments import check_known
from ncclkv.comm.diagnosis.call_log import LoggedKeys
from ncclkv.engine.overlap import OrderedLaunch
from ncclkv.errors import UsageError, annotate
from ncclkv.store.context import Component, Context
from ncclkv.store.keys import key_list
from ncclkv.store.session import IN_UNEVEN
from ncclkv.store.transfers import Transfers, out_of_memory
from ncclkv.table.registry import Key

_MISSING = ("error", "zeros")

Keys = dict[Key, None]
"""The keys of a block as a set, in the order of their initialisation."""


class Overlaps(Component):
    """Opens overlap blocks, of which each is one call of the contract."""

    def __init__(self, context: Context, transfers: Transfers) -> None:
        super().__init__(context)
        self._transfers = transfers
        self._last: tuple[Keys, LoggedKeys, LoggedKeys] = {}, LoggedKeys(), LoggedKeys()

    @contextmanager
    def overlap_block(self, keys: Any, missing: Any) -> Iterator[None]:
        """Take the pushes of all threads in a block, and launch each bucket in its turn."""
        session = self._session
        with session.verb("overlap", allowed_inside=(IN_UNEVEN,)):
            with session.checks:
                check_known("overlap: missing", missing, _MISSING)
                wanted = self._block_keys(keys)
                self._engine.rule.step()
                self._seal(wanted)
                step = self._engine.step_of(wanted, packed=False)
            if wanted != self._last[0]:
                self._last = wanted, LoggedKeys(), LoggedKeys()
            _, begin, end = self._last
            self._calls.record("overlap", wanted, (), begin)
            any_thread = self._comm.thread_multiple
            block = OrderedLaunch(self._engine, wanted, step, any_thread=any_thread)
        try:
            with self._transfers.lent(block):
                yield
            with session.verb("overlap", allowed_inside=(IN_UNEVEN,)):
                self._check_missing(block, zeros=missing == "zeros")
                block.launch_rest()
                self._calls.record("end of an overlap", wanted, (), end)
                block.commit()
        except BaseException as error:
            self._end_early(block, error)
            raise
        session.raise_updater_error()

    def _block_keys(self, keys: Any) -> Keys:
        """Return the keys of a block: those given, or all keys of the store."""
        registry = self._engine.layout.registry
        if keys is None:
            return dict.fromkeys(spec.key for spec in registry)
        return dict.fromkeys(registry.update_order(key_list(keys)))

    def _seal(self, keys: Keys) -> None:
        """Give keys their slots; nothing has been recorded, so a lack of memory breaks nothing."""
        try:
            for key in keys:
                self._engine.layout[key]
        except MemoryError as error:
            raise out_of_memory("overlap", list(keys), error) from error

    def _check_missing(self, block: OrderedLaunch, *, zeros: bool) -> None:
        """Refuse the end of a block without some keys, or fill these with zeros.

        Raises
        ------
        UsageError
            When a key was not pushed, unless it counts as zeros.
        """
        if zeros:
            block.fill_missing()
        elif missing := block.missing:
            what = f"key {missing[0]!r} was"
            if len(missing) > 1:
                what = f"{len(missing)} keys, {missing[0]!r} the first, were"
            threads = ", ".join(map(repr, block.threads)) or "none"
            raise UsageError(
                f"end of an overlap block: {what} not pushed in it (threads that pushed: "
                f"{threads}); push each key, name the keys that you push in keys=, or set "
                f"missing='zeros'"
            )

    def _end_early(self, block: OrderedLaunch, error: BaseException) -> None:
        """Drop the pushes of a block that an exception has left, and record this end.

        Ranks that have ended the block otherwise find the record, and raise.  If all ranks leave
        the block after the same pushes, their stores are equal.
        """
        launched, session, updates = block.launched, self._session, self._engine.updates
        dropped = [key for key in block.pushed if key not in launched]
        block.cancel()
        if session.failure is not None or session.closed:
            return
        with suppress(UsageError):  # of an optimizer's number; the next call is refused, too
            self._calls.record("early end of an overlap", launched, dropped)
        if launched and not updates.rule.by_key:
            updates.applying = True
            if updates.torn:
                session.mark_interrupted("overlap", error)
            updates.applying = False
            annotate(
                error,
                f"rank {self._comm.rank}: {len(launched)} keys of the overlap block are reduced, "
                f"{launched[0]!r} the first; its other keys have their old values",
            )
