"""`AgreedFlush`: flushes that begin with an exchange of the keys that each rank has pushed.

Ranks need the exchange if they may push different keys (``missing="zeros"``, uneven blocks), or if
hosts check gradients for NaN.  Each rank sends a `Contribution`.  From the contributions every rank
derives the same keys to reduce.  A rank fills in the keys that it has not pushed.

A push launches nothing, and a flush reduces all pushed keys, or all ranks skip the flush.  A
missing key counts as zeros, or for max, min and prod as the value that changes nothing.  If the
user has a view of that gradient, it is copied before, and restored after the flush.

A rank that arrives at the end of an uneven block with waiting pushes contributes them to one flush.
An average divides by the ranks that pushed the key; with ``missing="zeros"``, by all ranks that
have not ended their block.  Functions as updaters run in the flush.  The contract leaves out pushes
under ``missing="zeros"``, and all calls in an uneven block.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np

from ncclkv.comm.diagnosis.reports import format_ranks
from ncclkv.engine.flush import FlushPolicy
from ncclkv.engine.nonfinite import NonfiniteReport
from ncclkv.engine.reducer import Reducer
from ncclkv.engine.reduction import Senders
from ncclkv.engine.storage import Array, StoredBucket
from ncclkv.errors import OrderMismatch
from ncclkv.table.registry import Key


class Role(IntEnum):
    """Role of a rank in a flush."""

    PUSHES = 0
    LEAVES = 1
    """The rank is at the end of an uneven block, and contributes its last pushes."""
    DRAINED = 2
    """The rank has nothing left to push, and contributes nothing."""


class Contribution(NamedTuple):
    """Message of one rank at the begin of a flush.

    Attributes
    ----------
    pushed : frozenset of int
        Registry indices of the keys pushed.
    nonfinite : frozenset of int
        Registry indices of pushed keys whose gradients hold NaN or infinity.
    buckets : tuple of int
        Indices of the buckets that the rank will read after the flush.
    hyperparameters : Any
        The optimizer's hyperparameters on the rank; None if all ranks push the same keys.
    role : Role
    failure : str or None
        Text of the updater's exception on the rank, if the rank has not sent it before.
    """

    pushed: frozenset[int]
    nonfinite: frozenset[int]
    buckets: tuple[int, ...]
    hyperparameters: Any
    role: Role
    failure: str | None


class AgreedFlush(FlushPolicy):
    """Reduces all buckets together, after an exchange of contributions.

    Parameters
    ----------
    reducer : Reducer
    report : NonfiniteReport
    missing_zeros : bool
        Whether ranks may push different keys: a missing key counts as zeros, or as the neutral
        element of its op.
    uneven : bool
        Whether ranks may be drained while others push.
    """

    def __init__(
        self, reducer: Reducer, report: NonfiniteReport, *, missing_zeros: bool, uneven: bool
    ) -> None:
        super().__init__(reducer)
        self.allows_missing = missing_zeros or uneven
        self._missing_zeros = missing_zeros
        self._report = report

    def update_by_key(self, keys: Collection[Key]) -> None:
        if not self.allows_missing:
            self.flush()

    def prepare_read(self, states: Sequence[StoredBucket]) -> None:
        self._flush(states)

    def share_failure(self) -> None:
        """Leave the exception to the next exchange."""

    def drain(self) -> None:
        """Wait until all ranks are drained, and take part in their flushes; collective."""
        wanted, role = self._layout.states, Role.LEAVES
        if not any(state.waiting for state in wanted):
            wanted, role = [], Role.DRAINED
        while self._flush(wanted, role):
            wanted, role = [], Role.DRAINED

    def _flush(self, wanted: Sequence[StoredBucket], role: Role = Role.PUSHES) -> int:
        """Exchange contributions, reduce the keys pushed, and publish the buckets that ranks read.

        Returns
        -------
        int
            The count of ranks that are not drained.

        Raises
        ------
        OrderMismatch
            When ranks have pushed different keys, and ``missing="zeros"`` is not set.
        NonFinite
            On every rank, with ``nonfinite="raise"``; no rank applies its pushes.
        """
        self._layout.seal()
        mine = self._contribution(wanted, role)
        received = self._comm.control.allgather(tuple(mine), "the keys pushed")
        all_ranks = [Contribution(*each) for each in received]
        active = sum(each.role != Role.DRAINED for each in all_ranks)
        senders = self._senders(all_ranks)
        if any(each.nonfinite for each in all_ranks):
            for state in self._layout.states:
                state.drop()
            self._updates.rule.counts_set()  # the dropped pushes are no updates
            self._report.skip([each.nonfinite for each in all_ranks], 1)
            senders = {}
        self._updates.receive([each.failure for each in all_ranks])
        self._reduce(
            senders, self._step(all_ranks, senders, adopts=role != Role.PUSHES and active > 0)
        )
        # Also before no read here: a rank that leaves an uneven block reads meanwhile.
        indices = sorted({index for each in all_ranks for index in each.buckets})
        states = [self._layout.bucket_at(index) for index in indices]
        self._reducer.publish(states)
        self._reducer.complete(states)
        return active

    def _step(
        self, all_ranks: Sequence[Contribution], keys: Collection[Key], *, adopts: bool
    ) -> Any:
        """Return the optimizer's step of a flush of `keys`, equal on all ranks.

        The step is None if all ranks push the same keys: each push has brought its own.

        The hyperparameters are those of the placement's leader if it still pushes.  Else they are
        those of the first rank that pushes or, if none does, of the first rank that leaves.  With
        `adopts` they replace this rank's.
        """
        if not self.allows_missing:
            return None
        rule, leader = self._updates.rule, self._updates.placement.leader
        first = min(
            range(len(all_ranks)), key=lambda rank: (all_ranks[rank].role, rank != leader, rank)
        )
        hyperparameters = all_ranks[first].hyperparameters
        if adopts:
            rule.adopt(hyperparameters)
        slots = (self._layout[key] for key in keys)
        return rule.step_from(
            hyperparameters, ((slot.state.bucket, {slot.entry.key}, set()) for slot in slots)
        )

    def _reduce(self, senders: Mapping[Key, Senders], step: Any) -> None:
        """Reduce keys on all ranks; `senders` are the ranks whose gradients are in their sums."""
        lent = self._fill_missing(senders)
        for state in self._layout.buckets(senders):
            if self.allows_missing:
                state.set_step(step)
            groups: dict[Senders, set[Key]] = {}
            for key in sorted(state.waiting, key=state.bucket.entry_indices.__getitem__):
                groups.setdefault(senders[key], set()).add(key)
            for ranks, keys in groups.items():
                some = ranks if len(ranks) < self._comm.size else None
                self._reducer.launch(state, keys, some)
        self._reducer.finish(self._layout.states)
        if self._updates.rule.by_key:
            self._reducer.update_keys(senders)
        for gradient, copy in lent:
            self._kernels.pack(copy, gradient)
        self._comm.keep_alive(*(copy for _, copy in lent))

    def _contribution(self, wanted: Sequence[StoredBucket], role: Role) -> Contribution:
        """Return this rank's message; `wanted` are the buckets that it will read."""
        registry, report = self._layout.registry, self._report
        waiting = [state for state in self._layout.states if state.waiting]
        suspects = waiting if report.enabled else []
        return Contribution(
            frozenset(registry[key].index for state in waiting for key in state.waiting),
            frozenset(
                registry[key].index for state in suspects for key in self._nonfinite_keys(state)
            ),
            tuple(state.bucket.index for state in wanted),
            self._updates.rule.hyperparameters() if self.allows_missing else None,
            role,
            self._updates.failure,
        )

    def _nonfinite_keys(self, state: StoredBucket) -> list[Key]:
        """Return the pushed keys of a bucket whose gradients hold NaN or infinity."""
        # A neutral element of max or min is infinite, and no value of the program's.
        if not any(self._find_nonfinite(state.own_arrays())):
            return []
        own = state.own
        keys = [entry.key for entry in state.bucket.entries if entry.key in own]
        pairs = [(key, array) for key in keys for array in self._layout[key].pushed_arrays()]
        found = self._find_nonfinite([array for _, array in pairs])
        return [key for (key, _), nonfinite in zip(pairs, found, strict=True) if nonfinite]

    def _find_nonfinite(self, arrays: Sequence[Array]) -> list[int]:
        """Return 1 for each array that holds NaN or infinity, else 0."""
        flags = self._kernels.zeros(len(arrays), np.dtype(np.int32))
        for index, array in enumerate(arrays):
            self._kernels.find_nonfinite(array, flags[index : index + 1])
        found: list[int] = self._comm.to_host(flags).tolist()
        return found

    def _senders(self, all_ranks: Sequence[Contribution]) -> dict[Key, Senders]:
        """Return the ranks whose gradients are in the sum of each key that any rank has pushed.

        A rank that leaves may have pushed fewer keys than the ranks that went on.  Where their
        count has no effect, these are all ranks that take part, so that a bucket needs one launch.
        """
        pushed = frozenset().union(*(each.pushed for each in all_ranks))
        specs = [spec for spec in self._layout.registry if spec.index in pushed]
        active = frozenset(rank for rank, each in enumerate(all_ranks) if each.role != Role.DRAINED)
        if self._missing_zeros:
            return dict.fromkeys((spec.key for spec in specs), active)
        pushing = [rank for rank, each in enumerate(all_ranks) if each.role == Role.PUSHES]
        senders: dict[Key, Senders] = {}
        for spec in specs:
            having = [rank for rank, each in enumerate(all_ranks) if spec.index in each.pushed]
            lacking = [rank for rank in pushing if spec.index not in all_ranks[rank].pushed]
            if lacking:
                raise OrderMismatch(
                    f"rank {self._comm.rank} of {self._comm.size}: key {spec.key!r} was pushed by "
                    f"{format_ranks(having)} and not by {format_ranks(lacking)}; push it on all "
                    f"ranks, or create the store with missing='zeros'",
                    key=spec.key,
                    ranks=lacking,
                )
            counted = spec.op == "avg" or spec.key in self._layout[spec.key].state.coded
            senders[spec.key] = frozenset(having) if counted else active
        return senders

    def _fill_missing(self, keys: Iterable[Key]) -> list[tuple[Array, Array]]:
        """Fill each gradient that this rank has not pushed with the neutral element of its op.

        Returns
        -------
        list of (ndarray, ndarray)
            Filled gradients of which the user holds a view, and copies of them.
        """
        lent = []
        for key in keys:
            slot = self._layout[key]
            if key not in slot.state.waiting:
                copied = slot.copy_lent(self._kernels)
                if copied is not None:
                    lent.append(copied)
                slot.push_neutral(self._kernels)
        return lent
