"""`BucketPush`: the arrays of one call that are packed into one bucket of dense keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from ncclkv import concurrency
from ncclkv.engine.bucket_state import BucketState, Slot
from ncclkv.engine.events import Events
from ncclkv.engine.storage import Array, StoredPush
from ncclkv.kernels.base import Kernels
from ncclkv.table.registry import Key

Indices = Sequence[int]
"""Indices of arrays in the list of a call: a range if they are consecutive."""


LENT_FROM_BYTES = 1024 * 1024
"""Smallest push whose arrays are encoded where they are: to lend less takes longer than a copy."""


class BucketPush(StoredPush):
    """The arrays of a push that belong to one bucket of dense keys.

    Parameters
    ----------
    slots : sequence of Slot
        The keys pushed.
    indices : mapping of key to sequence of int
        The arrays of all keys of the push.
    in_place : set of keys
        Keys whose array is their own gradient, so that nothing is copied.
    count : int
        Count of the arrays of the push.

    Attributes
    ----------
    several : list of (Slot, sequence of int)
        Keys with several arrays, and the indices of the arrays.
    """

    state: BucketState
    in_place: list[Slot]
    several: list[tuple[Slot, Indices]]

    __slots__ = (
        "_all",
        "_gradient_table",
        "_gradients",
        "_indices",
        "_nbytes",
        "_slots",
        "_weight_table",
        "_weights",
    )

    def __init__(
        self,
        slots: Sequence[Slot],
        indices: Mapping[Key, Indices],
        in_place: Set[Key],
        count: int,
    ) -> None:
        self.state = slots[0].state
        self.keys = {slot.entry.key for slot in slots}
        self._nbytes = sum(slot.gradient.nbytes for slot in slots)
        self.in_place = [slot for slot in slots if slot.entry.key in in_place]
        copied = [
            (slot, indices[slot.entry.key]) for slot in slots if slot.entry.key not in in_place
        ]
        singles = [(slot, found) for slot, found in copied if len(found) == 1]
        self.several = [(slot, found) for slot, found in copied if len(found) != 1]
        self._indices = as_range([index for _, (index,) in singles])
        self._all = len(singles) == count
        self._slots = tuple(slot for slot, _ in singles)
        self._gradients = tuple(slot.gradient for slot, _ in singles)
        self._weights = tuple(slot.weight for slot, _ in singles)
        # Results of `pack_all`, which takes them back at the next call.
        self._gradient_table: Any = None
        self._weight_table: Any = None

    @property
    def whole(self) -> bool:
        return not self.in_place and len(self.keys) == self.state.key_count

    def lend(self, arrays: Sequence[Array]) -> AbstractContextManager[None] | None:
        state = self.state
        if self._nbytes < LENT_FROM_BYTES or not (
            len(self._slots) == len(state.coded) == state.key_count
        ):
            return None
        values = select(arrays, self._indices)
        readable = all(array.flags.c_contiguous for array in values) and all(
            each.reads_once for each in {*state.coded.values()}
        )
        return self._lent(values) if readable else None

    @contextmanager
    def _lent(self, values: Sequence[Array]) -> Iterator[None]:
        """Let launches in the block read arrays in place of the gradients of the bucket."""
        pairs = zip(self._slots, values, strict=True)
        given = {slot.entry.key: array.reshape(-1) for slot, array in pairs}
        spans = self.state.spans(self.keys)
        for span in spans:
            span.given = given
        try:
            yield
        finally:
            for span in spans:
                span.given = None

    def copy_in(
        self,
        arrays: Sequence[Array],
        kernels: Kernels,
        events: Events,
        *,
        to_weights: bool = False,
    ) -> None:
        state = self.state
        begin = concurrency.perf_counter() if events.listeners else None
        for slot, indices in self.several:
            flat, spec = slot.weight if to_weights else slot.gradient, slot.entry.spec
            several = select(arrays, indices)
            if spec.key in state.coded:
                several = state.reductions.stage(spec, several, kernels)
            kernels.combine(several, flat, spec.op)
        if self._all or self._indices:
            values = arrays if self._all else select(arrays, self._indices)
            if to_weights:
                self._weight_table = kernels.pack_all(values, self._weights, self._weight_table)
            else:
                table = kernels.pack_all(values, self._gradients, self._gradient_table)
                self._gradient_table = table
        if begin is not None:
            seconds = concurrency.perf_counter() - begin
            events.emit("packed", state.bucket.index, self.keys, self._nbytes, seconds)


def select(arrays: Sequence[Array], indices: Indices) -> Sequence[Array]:
    """Return the arrays with the given indices."""
    if isinstance(indices, range):
        return arrays[indices.start : indices.stop]
    return [arrays[index] for index in indices]


def as_range(indices: list[int]) -> Indices:
    """Return consecutive indices as a range, which `select` takes as one slice; others as given."""
    block = range(indices[0], indices[0] + len(indices)) if indices else range(0)
    return block if indices == list(block) else indices
