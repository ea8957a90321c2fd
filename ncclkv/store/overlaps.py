"""Overlaps: blocks in which any thread pushes, while full buckets are reduced.

The store is lent to all threads of the program, one push at a time, under the communicator's lock
(`ncclkv.store.shared_verb`).  `ncclkv.engine.ordered_launch` launches full buckets in one order, in
the thread of the push that has filled them.  If MPI allows one thread only, the pushes of other
threads wait for the store thread's next push, or for the block's end.  On hosts a launched sum
advances during later pushes.

Begin and end of a block are recorded, with its keys as a set; its pushes are not.  An exception
that leaves the block is another end.  Such an end is recorded with the keys that are reduced and
the keys that are dropped.  So ranks that leave the block in different states raise `OrderMismatch`.

On GPUs the streams of the threads wait for each other.  A default stream of each thread (CUDA's
address 2) is refused: no event orders such streams of two threads.  A new thread has GPU 0, so a
push makes the store's GPU current, and then the thread's own again.  A thread that has used no GPU
keeps the store's: GPU 0 may be another rank's.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from ncclkv.arguments import check_known
from ncclkv.comm.diagnosis.call_ring import LoggedKeys
from ncclkv.engine.ordered_launch import BlockPlan, OrderedLaunch
from ncclkv.errors import UsageError, annotate
from ncclkv.store.context import Component, Context
from ncclkv.store.keys import EXACT, is_list, key_list
from ncclkv.store.session import IN_UNEVEN
from ncclkv.store.transfers import Transfers, out_of_memory
from ncclkv.table.registry import Key

_MISSING = ("error", "zeros")


class _Keys:
    """The keys of a block: as the program gave them, by bucket, and in the call log.

    The buckets are those after so many merges.
    """

    def __init__(self, given: Any, plan: BlockPlan, merges: int) -> None:
        self.plan = plan
        self.merges = merges
        self.begin, self.end = LoggedKeys(), LoggedKeys()
        self._given = list(given) if is_list(given) else None

    def is_of(self, given: Any) -> bool:
        """Return whether a block was given the same list of keys."""
        return is_list(given) and list(given) == self._given and EXACT.issuperset(map(type, given))


class Overlaps(Component):
    """Opens overlap blocks, of which each is one call of the contract."""

    def __init__(self, context: Context, transfers: Transfers) -> None:
        super().__init__(context)
        self._transfers = transfers
        self._last: _Keys | None = None

    @contextmanager
    def overlap_block(self, keys: Any, missing: Any) -> Iterator[None]:
        """Take pushes of all threads in a block; launch each bucket in its turn; collective."""
        session = self._session
        with session.verb("overlap", allowed_inside=(IN_UNEVEN,)):
            with session.checks:
                check_known("overlap: missing", missing, _MISSING)
                found = self._block_keys(keys)
                wanted = found.plan.keys
                step = self._engine.step_of(wanted, packed=False)
            self._calls.record("overlap", wanted, (), found.begin)
            any_thread = self._comm.thread_multiple
            block = OrderedLaunch(self._engine, found.plan, step, any_thread=any_thread)
        try:
            with self._transfers.lent(block):
                yield
            with session.verb("overlap", allowed_inside=(IN_UNEVEN,)):
                self._check_missing(block, zeros=missing == "zeros")
                block.launch_rest()
                self._calls.record("end of an overlap", wanted, (), found.end)
                block.commit()
        except BaseException as error:
            self._end_early(block, error)
            raise
        session.raise_updater_error()

    def _block_keys(self, keys: Any) -> _Keys:
        """Return the keys of a block: those given, or all keys of the store."""
        last, layout = self._last, self._engine.layout
        if last is not None and last.merges != layout.merges:
            last = None  # keys have moved to other buckets
        if last is not None and last.is_of(keys):
            return last
        registry = layout.registry
        if keys is None:
            wanted = dict.fromkeys(spec.key for spec in registry)
        else:
            wanted = dict.fromkeys(registry.update_order(key_list(keys)))
        self._engine.rule.step()
        self._seal(wanted)
        if last is None or wanted != last.plan.keys:
            self._last = last = _Keys(keys, BlockPlan(layout, wanted), layout.merges)
        return last

    def _seal(self, keys: Collection[Key]) -> None:
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
        with suppress(UsageError):  # of a hyperparameter; the next call is refused, too
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
