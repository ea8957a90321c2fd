"""`AgreedFlush`: a flush that begins with an exchange of what each rank has pushed.

Ranks need it when they may push different keys (``missing="zeros"``, uneven blocks), or when hosts
look for NaN.  Each rank sends a `Contribution`; from all of them every rank makes the same
`FlushPlan`: the keys to reduce, of which this rank fills in the missing ones.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np

from ncclkv.comm.diagnosis.reports import format_ranks
from ncclkv.engine.bucket_state import Array, BucketState, Slot
from ncclkv.engine.nonfinite import NonfiniteReport
from ncclkv.engine.reducer import Reducer
from ncclkv.errors import OrderMismatch
from ncclkv.table import plan
from ncclkv.table.registry import Key


class Part(IntEnum):
    """The part that a rank takes in a flush."""

    PUSHES = 0
    LEAVES = 1
    """The rank is at the end of an uneven block, and contributes its last pushes."""
    DRAINED = 2
    """The rank has nothing left to push, and contributes nothing."""


class Contribution(NamedTuple):
    """One rank's message at the begin of a flush.

    Attributes
    ----------
    pushed : frozenset of int
        Registry indices of the keys pushed.
    nonfinite : frozenset of int
        The indices among them whose gradients hold NaN or infinity.
    buckets : tuple of int
        Numbers of the buckets that the rank will read after the flush.
    hyperparameters : Any
        The optimizer's hyperparameters on the rank.
    part : Part
    failure : str or None
        Text of the updater's exception on the rank, not sent before.
    """

    pushed: frozenset[int]
    nonfinite: frozenset[int]
    buckets: tuple[int, ...]
    hyperparameters: Any
    part: Part
    failure: str | None


class FlushPlan(NamedTuple):
    """The result of an exchange, equal on all ranks.

    Attributes
    ----------
    keys : dict of key to int
        The keys to reduce, in registry order, and the number of ranks in the average of each.
    buckets : list of int
        Numbers of the buckets that some rank will read after the flush.
    active : int
        Number of ranks that are not drained.
    hyperparameters : Any
        The optimizer's hyperparameters on the placement's leader if it still pushes, else on the
        first rank that does; if all ranks leave, on the first of them.
    failure : str or None
        Text of the updater's exception on the placement's leader.
    """

    keys: dict[Key, int]
    buckets: list[int]
    active: int
    hyperparameters: Any
    failure: str | None


class AgreedFlush:
    """Reduces all buckets together, after an exchange between the ranks.

    Parameters
    ----------
    reducer : Reducer
    report : NonfiniteReport
    missing_zeros : bool
        Whether ranks may push different keys: a missing key counts as zeros.
    uneven : bool
        Whether ranks may be drained while others push.
    """

    flushes_everything = True

    def __init__(
        self, reducer: Reducer, report: NonfiniteReport, *, missing_zeros: bool, uneven: bool
    ) -> None:
        self.allows_missing = missing_zeros or uneven
        self._missing_zeros = missing_zeros
        self._reducer = reducer
        self._comm, self._layout = reducer.comm, reducer.layout
        self._kernels, self._updates = reducer.kernels, reducer.updates
        self._report = report

    def make_room(self, state: BucketState) -> None:
        self.flush()

    def packed(self, state: BucketState) -> None:
        """Leave the bucket for the next flush."""

    def pushed(self, keys: Collection[Key]) -> None:
        if self._updates.rule.by_key and not self.allows_missing:
            self.flush()

    def flush(self) -> None:
        # As for a read of no bucket: a rank that leaves an uneven block reads meanwhile, and
        # all ranks must launch the broadcasts of its buckets.
        self.prepare_read(())

    def prepare_read(self, states: Sequence[BucketState]) -> None:
        agreed = self._flush(states)
        self._publish(agreed)

    def share_failure(self) -> None:
        """Leave the exception to the next exchange."""

    def answer(self) -> None:
        """Take part in the flushes of other ranks without pushing, until all ranks are drained."""
        wanted, part = self._layout.states, Part.LEAVES
        if not any(state.pushed for state in wanted):
            wanted, part = [], Part.DRAINED
        while (agreed := self._flush(wanted, part)).active:
            self._publish(agreed)
            wanted, part = [], Part.DRAINED

    def _publish(self, agreed: FlushPlan) -> None:
        """Broadcast the buckets that some rank reads, and wait for them."""
        states = [self._layout.states[number] for number in agreed.buckets]
        self._reducer.publish(states)
        self._reducer.complete(states)

    def _flush(self, wanted: Sequence[BucketState], part: Part = Part.PUSHES) -> FlushPlan:
        """Exchange contributions, and reduce the keys that the ranks have pushed."""
        updates, rule = self._updates, self._updates.rule
        mine = rule.hyperparameters() if self.allows_missing else None
        agreed = self._agree([state.bucket.index for state in wanted], mine, part)
        updates.receive(agreed.failure)
        if part != Part.PUSHES and agreed.active:
            rule.adopt(agreed.hyperparameters)
        step = rule.step_from(agreed.hyperparameters) if self.allows_missing else None
        lent = self._fill_missing(agreed.keys)
        for state in self._layout.buckets(agreed.keys):
            if self.allows_missing:
                state.step = step
            self._launch(state, agreed.keys)
        self._reducer.complete(self._layout.states)
        if rule.by_key:
            self._reducer.update_keys(agreed.keys)
        self._restore(lent)
        return agreed

    def _launch(self, state: BucketState, counts: Mapping[Key, int]) -> None:
        """Launch a bucket; averages over different numbers of ranks need a launch each."""
        if state.bucket.op != "avg":
            self._reducer.launch(state)
            return
        pushed = state.pushed
        for count in sorted({counts[key] for key in pushed}):
            state.pushed = {key for key in pushed if counts[key] == count}
            self._reducer.launch(state, count)

    def _agree(self, buckets: Iterable[int], hyperparameters: Any, part: Part) -> FlushPlan:
        """Exchange contributions with all ranks; collective.

        Raises
        ------
        OrderMismatch
            When ranks have pushed different keys and may not.
        NonFinite
            On every rank, with ``nonfinite="raise"``; no rank applies its pushes.
        """
        self._layout.seal()
        mine = self._contribution(buckets, hyperparameters, part)
        received = self._comm.control.allgather(tuple(mine), "what was pushed")
        all_ranks = [Contribution(*each) for each in received]
        active = [rank for rank, each in enumerate(all_ranks) if each.part != Part.DRAINED]
        wanted = sorted({number for each in all_ranks for number in each.buckets})
        keys = self._keys(all_ranks, active)
        if any(each.nonfinite for each in all_ranks):
            for state in self._layout.states:
                state.pushed.clear()
            self._report.skip([each.nonfinite for each in all_ranks], 1)
            keys = {}
        leader = self._updates.placement.leader
        first = min(
            range(len(all_ranks)),
            key=lambda rank: (all_ranks[rank].part, rank != leader, rank),
        )
        return FlushPlan(
            keys,
            wanted,
            len(active),
            all_ranks[first].hyperparameters,
            all_ranks[leader].failure,
        )

    def _contribution(
        self, buckets: Iterable[int], hyperparameters: Any, part: Part
    ) -> Contribution:
        """Return this rank's message."""
        registry, pushed, nonfinite = self._layout.registry, [], []
        for state in self._layout.states:
            pushed += [registry[key].index for key in state.pushed]
            if state.pushed and self._report.enabled:
                nonfinite += [registry[key].index for key in self._nonfinite_keys(state)]
        return Contribution(
            frozenset(pushed),
            frozenset(nonfinite),
            tuple(buckets),
            hyperparameters,
            part,
            self._updates.failure,
        )

    def _nonfinite_keys(self, state: BucketState) -> list[Key]:
        """Return the pushed keys of a bucket whose gradients hold NaN or infinity."""
        spans = plan.spans(state.bucket, state.pushed)
        if not any(self._find_nonfinite([state.span(bounds).gradients for bounds in spans])):
            return []
        keys = [entry.key for entry in state.bucket.entries if entry.key in state.pushed]
        found = self._find_nonfinite([self._layout[key].gradient for key in keys])
        return [key for key, nonfinite in zip(keys, found, strict=True) if nonfinite]

    def _find_nonfinite(self, arrays: Sequence[Array]) -> list[int]:
        """Return 1 for each array that holds NaN or infinity, else 0."""
        kernels, dtype = self._kernels, np.dtype(np.int32)
        flags = kernels.zeros(len(arrays), dtype)
        for index, array in enumerate(arrays):
            kernels.find_nonfinite(array, flags[index : index + 1])
        on_host = np.empty(len(arrays), dtype)
        self._comm.synchronize()
        kernels.unpack(flags, on_host)
        return [int(flag) for flag in on_host]

    def _keys(self, all_ranks: Sequence[Contribution], active: Sequence[int]) -> dict[Key, int]:
        """Return the keys that some rank has pushed, and the number of ranks in their averages.

        A rank that leaves may have pushed fewer keys than the ranks that went on.
        """
        pushed = frozenset().union(*(each.pushed for each in all_ranks))
        specs = [spec for spec in self._layout.registry if spec.index in pushed]
        if self._missing_zeros:
            return dict.fromkeys((spec.key for spec in specs), len(active))
        counts: dict[Key, int] = {}
        for spec in specs:
            having = [rank for rank in active if spec.index in all_ranks[rank].pushed]
            lacking = [
                rank
                for rank in active
                if spec.index not in all_ranks[rank].pushed and all_ranks[rank].part == Part.PUSHES
            ]
            if having and lacking:
                raise OrderMismatch(
                    f"rank {self._comm.rank} of {self._comm.size}: key {spec.key!r} was pushed by "
                    f"{format_ranks(having)} and not by {format_ranks(lacking)}; push it on all "
                    f"ranks, or create the store with missing='zeros'"
                )
            counts[spec.key] = len(having)
        return counts

    def _fill_missing(self, keys: Iterable[Key]) -> list[tuple[Slot, Array]]:
        """Push the neutral element of the op for each key that this rank has not pushed.

        Returns
        -------
        list of (Slot, ndarray)
            Slots whose gradient the user holds a view of, and copies of these gradients.
        """
        lent = []
        for key in keys:
            slot = self._layout[key]
            if key not in slot.state.pushed:
                slot.state.in_flight.complete()
                if slot.lent:
                    lent.append((slot, self._kernels.copy(slot.gradient)))
                self._kernels.fill(slot.gradient, _neutral(slot.state))
                slot.state.pushed.add(key)
        return lent

    def _restore(self, lent: Sequence[tuple[Slot, Array]]) -> None:
        """Put back the gradients that the user holds views of."""
        for slot, copy in lent:
            self._kernels.pack(copy, slot.gradient)
        self._comm.keep_alive(*(copy for _, copy in lent))


def _neutral(state: BucketState) -> float:
    """Return the number that changes no reduction by the bucket's op."""
    op, dtype = state.bucket.op, state.bucket.dtype
    if op not in ("max", "min"):
        return 0
    if dtype.kind == "b":
        return op == "min"
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return int(limits.min if op == "max" else limits.max)
    return float("-inf") if op == "max" else float("inf")
