"""What ranks tell each other before a flush, where they need not all push the same, or not always.

Each says which keys it has pushed, and which of these hold NaN or infinity.  From all that has been
said every rank finds the same: what is reduced, what of it is filled up here, or that nothing is.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np

from ncclkv.comm.base import Communicator
from ncclkv.comm.diagnosis.reports import format_ranks
from ncclkv.engine.bucket_state import Array, BucketState, Slot
from ncclkv.engine.layout import Layout
from ncclkv.errors import NonFinite, OrderMismatch
from ncclkv.kernels.base import Kernels
from ncclkv.table import plan
from ncclkv.table.registry import Key

_log = logging.getLogger("ncclkv")

_SHOWN = 8


class Part(IntEnum):
    """The part that a rank takes in a flush."""

    STAYS = 0
    LEAVES = 1
    """It has come to the end of an uneven block, and gives what it pushed before."""
    ANSWERS = 2
    """It has pushed nothing, and contributes nothing."""


class Contribution(NamedTuple):
    """What one rank says.

    Attributes
    ----------
    pushed : frozenset of int
        Places of keys in the registry.
    nonfinite : frozenset of int
        Those of them that hold NaN or infinity here.
    buckets : tuple of int
        Numbers of the buckets that are to be readable after the flush.
    hyperparameters : Any
        Of the update, as they are here.
    part : Part
    failure : str or None
        What the updater has raised here, of which other ranks have not heard.
    """

    pushed: frozenset[int]
    nonfinite: frozenset[int]
    buckets: tuple[int, ...]
    hyperparameters: Any
    part: Part
    failure: str | None


class FlushPlan(NamedTuple):
    """What follows for every rank.

    Attributes
    ----------
    keys : dict of key to int
        What is reduced, in the order of the registry, and the number of ranks in its average.
    buckets : list of int
        Numbers of the buckets that are to be readable after the flush.
    active : int
        How many ranks do not only answer.
    hyperparameters : Any
        Of the update: the root's if it stays, or the first rank's that does; if all leave, the
        first one's.
    failure : str or None
        What the updater has raised on a rank, if it runs on one alone.
    """

    keys: dict[Key, int]
    buckets: list[int]
    active: int
    hyperparameters: Any
    failure: str | None


class FlushAgreement:
    """Says what this rank has pushed, and hears it of the others.

    Parameters
    ----------
    comm : Communicator
    layout : Layout
    kernels : Kernels
    zeros : bool
        Whether ranks may push different keys.
    nonfinite : {"ignore", "raise", "skip_step"}

    Attributes
    ----------
    zeros : bool
    uneven : bool
        Whether ranks may have joined those that only answer.
    flagged : bool
        Whether NaN and infinity are found by a device, and no exchange is needed for that.
    skipped : int
        Flushes that came to nothing because of NaN or infinity.
    """

    def __init__(
        self, comm: Communicator, layout: Layout, kernels: Kernels, zeros: bool, nonfinite: str
    ) -> None:
        self.zeros = zeros
        self.uneven = False
        self.skipped = 0
        self.flagged = False
        self._comm = comm
        self._layout = layout
        self._kernels = kernels
        self._nonfinite = nonfinite
        self._kept: list[tuple[Slot, Array]] = []

    @property
    def needs_exchange(self) -> bool:
        """Whether flushes begin with an exchange."""
        return self.allows_missing or (self._nonfinite != "ignore" and not self.flagged)

    @property
    def looks(self) -> bool:
        """Whether NaN and infinity are looked for."""
        return self._nonfinite != "ignore"

    @property
    def allows_missing(self) -> bool:
        """Whether ranks may push different keys, or at different times."""
        return self.zeros or self.uneven

    def agree(
        self,
        buckets: Iterable[int],
        numbers: Any,
        root: int | None,
        part: Part = Part.STAYS,
        failure: str | None = None,
    ) -> FlushPlan:
        """What all ranks will do; collective.

        What others have pushed and this rank has not is in its buckets when this returns; after the
        flush `restore` puts back what the user has in gradients that were filled up so.

        Raises
        ------
        OrderMismatch
            When ranks have pushed different keys and may not.
        NonFinite
            On every rank, when it is to be raised; nothing that was pushed is applied.
        """
        self._layout.seal()
        mine = self._said(buckets, numbers, part, failure)
        said = self._comm.control.allgather(tuple(mine), "what was pushed")
        said = [Contribution(*each) for each in said]
        active = [rank for rank, each in enumerate(said) if each.part != Part.ANSWERS]
        wanted = sorted({number for each in said for number in each.buckets})
        keys = self._keys(said, active)
        if any(each.nonfinite for each in said):
            for state in self._layout.states:
                state.pushed.clear()
            self.tell([each.nonfinite for each in said], 1)
            keys = {}
        self._fill_up(keys)
        first = min(range(len(said)), key=lambda rank: (said[rank].part, rank != root, rank))
        failure = None if root is None else said[root].failure
        return FlushPlan(keys, wanted, len(active), said[first].hyperparameters, failure)

    def _said(
        self, buckets: Iterable[int], numbers: Any, part: Part, failure: str | None
    ) -> Contribution:
        """What this rank says."""
        registry, pushed, nonfinite = self._layout.registry, [], []
        for state in self._layout.states:
            pushed += [registry[key].index for key in state.pushed]
            if state.pushed and self._nonfinite != "ignore":
                nonfinite += [registry[key].index for key in self._nonfinite_keys(state)]
        return Contribution(
            frozenset(pushed), frozenset(nonfinite), tuple(buckets), numbers, part, failure
        )

    def _nonfinite_keys(self, state: BucketState) -> list[Key]:
        """The keys of a bucket whose gradients hold NaN or infinity."""
        spans = plan.spans(state.bucket, state.pushed)
        if not any(self._find([state.span(span).gradients for span in spans])):
            return []
        keys = [entry.key for entry in state.bucket.entries if entry.key in state.pushed]
        found = self._find([self._layout[key].gradient for key in keys])
        return [key for key, nonfinite in zip(keys, found, strict=True) if nonfinite]

    def _find(self, arrays: Sequence[Array]) -> list[int]:
        """1 for each array that holds NaN or infinity, else 0."""
        kernels, number = self._kernels, np.dtype(np.int32)
        flags = kernels.zeros(len(arrays), number)
        for place, array in enumerate(arrays):
            kernels.find_nonfinite(array, flags[place : place + 1])
        on_host = np.empty(len(arrays), number)
        self._comm.synchronize()
        kernels.unpack(flags, on_host)
        return [int(flag) for flag in on_host]

    def _keys(self, said: Sequence[Contribution], active: Sequence[int]) -> dict[Key, int]:
        """The keys that some rank has pushed, and the number of ranks in their averages.

        A rank that leaves has pushed less than the others, which went on.
        """
        pushed = frozenset().union(*(each.pushed for each in said))
        specs = [spec for spec in self._layout.registry if spec.index in pushed]
        if self.zeros:
            return dict.fromkeys((spec.key for spec in specs), len(active))
        counts: dict[Key, int] = {}
        for spec in specs:
            having = [rank for rank in active if spec.index in said[rank].pushed]
            lacking = [
                rank
                for rank in active
                if spec.index not in said[rank].pushed and said[rank].part == Part.STAYS
            ]
            if having and lacking:
                raise OrderMismatch(
                    f"rank {self._comm.rank} of {self._comm.size}: key {spec.key!r} was pushed by "
                    f"{format_ranks(having)} and not by {format_ranks(lacking)}; push it on all "
                    f"ranks, or create the store with missing='zeros'"
                )
            counts[spec.key] = len(having)
        return counts

    def tell(self, nonfinite: Sequence[Collection[int]], flushes: int) -> None:
        """Raise, or log, that flushes came to nothing.

        Parameters
        ----------
        nonfinite : sequence of collection of int
            Of each rank, the places in the registry of the keys that it has pushed NaN of.
        flushes : int
            How many.
        """
        self.skipped += flushes
        specs, found = [*self._layout.registry], []
        indices = sorted(set().union(*nonfinite))
        for index in indices[:_SHOWN]:
            ranks = [rank for rank, each in enumerate(nonfinite) if index in each]
            found.append(f"key {specs[index].key!r} on {format_ranks(ranks)}")
        if len(indices) > _SHOWN:
            found.append(f"{len(indices) - _SHOWN} more keys")
        text = f"NaN or infinity was pushed: {', '.join(found)}; no rank applies what was pushed"
        if self._nonfinite == "raise":
            raise NonFinite(f"rank {self._comm.rank} of {self._comm.size}: {text}")
        if self._comm.rank == 0:
            _log.warning("ncclkv: %s, and %d such flushes were skipped so far", text, self.skipped)

    def _fill_up(self, keys: Iterable[Key]) -> None:
        """Push what takes no part in a sum for each key that this rank has not pushed."""
        for key in keys:
            slot = self._layout[key]
            if key not in slot.state.pushed:
                slot.state.in_flight.complete()
                if slot.lent:
                    self._kept.append((slot, self._kernels.copy(slot.gradient)))
                self._kernels.fill(slot.gradient, _nothing(slot.state))
                slot.state.pushed.add(key)

    def restore(self) -> None:
        """Put back the gradients that were filled up for the flush that has ended."""
        for slot, kept in self._kept:
            self._kernels.pack(kept, slot.gradient)
        self._comm.keep_alive(*(kept for _, kept in self._kept))
        self._kept.clear()


def _nothing(state: BucketState) -> float:
    """What changes no sum, or no maximum or minimum."""
    op, dtype = state.bucket.op, state.bucket.dtype
    if op not in ("max", "min"):
        return 0
    if dtype.kind == "b":
        return op == "min"
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return int(limits.min if op == "max" else limits.max)
    return float("-inf") if op == "max" else float("inf")
