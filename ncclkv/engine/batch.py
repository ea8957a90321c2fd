"""`Push` and `Pull`: the arrays of one call, sorted by bucket.

Both refer to arrays by their index in the list of the call, and hold none of them.  So one object
serves every later call with the same keys, shapes and dtypes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ncclkv import concurrency
from ncclkv.arrays.memory import identities, is_on_host
from ncclkv.comm.diagnosis.call_log import LoggedKeys
from ncclkv.engine.bucket_state import Array, BucketState, Slot
from ncclkv.engine.events import Events
from ncclkv.engine.layout import Layout
from ncclkv.errors import UsageError
from ncclkv.kernels.base import Kernels
from ncclkv.table.registry import Key

if TYPE_CHECKING:
    from ncclkv.optimizer.scalar_rows import Pushed

Indices = Sequence[int]
"""Indices of arrays in the list of a call: a range if they are consecutive."""


class BucketPush:
    """The arrays of a push that belong to one bucket.

    Parameters
    ----------
    slots : sequence of Slot
        The keys pushed.
    indices : mapping of key to sequence of int
        The arrays of all keys of the push.
    in_place : set of keys
        Keys whose array is their own gradient, so that nothing is copied.
    count : int
        Number of arrays of the push.

    Attributes
    ----------
    state : BucketState
    keys : set of keys
    nbytes : int
        Bytes of their gradients.
    in_place : list of Slot
        Keys whose array is their own gradient.
    several : list of (Slot, sequence of int)
        Keys with several arrays, and the indices of the arrays.
    """

    # Few and small objects: a loop over keys finds none of them in the caches of the processor.
    __slots__ = (
        "_all",
        "_gradient_table",
        "_gradients",
        "_indices",
        "_slots",
        "_weight_table",
        "_weights",
        "in_place",
        "keys",
        "nbytes",
        "several",
        "state",
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
        self.nbytes = sum(slot.gradient.nbytes for slot in slots)
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

    def pushed(self) -> Pushed:
        """Return the bucket, the keys, and those of them that wait for an earlier launch."""
        return self.state.bucket, self.keys, self.keys & self.state.waiting

    def encodes_at_once(self, arrays: Sequence[Array]) -> bool:
        """Return whether the launch of this push can encode its arrays where they are.

        So it is if the keys of the bucket have one array each, and their reductions read it once.
        """
        state = self.state
        if len(self._slots) != state.key_count or len(state.coded) != state.key_count:
            return False
        return all(array.flags.c_contiguous for array in select(arrays, self._indices)) and all(
            each.reads_once for each in {*state.coded.values()}
        )

    @contextmanager
    def lent(self, arrays: Sequence[Array]) -> Iterator[None]:
        """Let launches in the block read the arrays in place of the gradients of the bucket."""
        given = {
            slot.entry.key: array.reshape(-1)
            for slot, array in zip(self._slots, select(arrays, self._indices), strict=True)
        }
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
        """Write this rank's sum of each key's arrays to the key's gradient, or to its weights."""
        state = self.state
        begin = concurrency.perf_counter() if events.listeners else None
        for slot, indices in self.several:
            flat = slot.weight if to_weights else slot.gradient
            several = select(arrays, indices)
            kernels.combine(several, flat, slot.entry.spec.op)
            if slot.entry.key in state.coded:
                state.reductions.stage(slot.entry.key, several)
        if self._all or self._indices:
            values = arrays if self._all else select(arrays, self._indices)
            if to_weights:
                self._weight_table = kernels.pack_all(values, self._weights, self._weight_table)
            else:
                table = kernels.pack_all(values, self._gradients, self._gradient_table)
                self._gradient_table = table
        if begin is not None:
            seconds = concurrency.perf_counter() - begin
            events.emit("packed", state.bucket.index, self.keys, self.nbytes, seconds)


@dataclass(eq=False, slots=True)
class Push:
    """A push, sorted by bucket.

    Attributes
    ----------
    indices : dict of key to sequence of int
        The keys in the order given, and the indices of their arrays.
    parts : sequence of BucketPush
        One for each bucket, in the order of buckets.
    logged : LoggedKeys
        The keys in the call log.
    several : bool
        Whether a key has several arrays.
    in_place : bool
        Whether an array is its own key's gradient.
    whole : bool
        Whether the push contains every key of its buckets, and no array is in place.
    """

    indices: dict[Key, Indices]
    parts: Sequence[BucketPush]
    logged: LoggedKeys = field(default_factory=LoggedKeys)
    several: bool = field(init=False)
    in_place: bool = field(init=False)
    whole: bool = field(init=False)

    def __post_init__(self) -> None:
        self.several = any(part.several for part in self.parts)
        self.in_place = any(part.in_place for part in self.parts)
        self.whole = not self.in_place and all(
            len(part.keys) == len(part.state.bucket.entries) for part in self.parts
        )

    def check_free(self, *, missing_zeros: bool) -> None:
        """Refuse a push whose gradients are in use.

        `missing_zeros` means that other ranks may push other keys.

        Raises
        ------
        UsageError
        """
        for part in self.parts:
            state = part.state
            if missing_zeros:
                for key in part.keys & state.waiting:
                    raise UsageError(
                        f"push of key {key!r}: the key was pushed and not flushed, and with "
                        f"missing='zeros' other ranks may not have pushed it; pull a key, or call "
                        f"wait(), between two pushes",
                        key=key,
                    )
            for slot in part.in_place:
                if state.works or state.needs(slot.entry.key):
                    raise UsageError(
                        f"push of key {slot.entry.key!r}: its grad_view was pushed and not "
                        f"flushed, so the store still needs it; pull the key, or call "
                        f"wait({slot.entry.key!r}), before you fill the view again",
                        key=slot.entry.key,
                    )


@dataclass(eq=False, slots=True)
class BucketPull:
    """The arrays of a pull that are read from one bucket, or from keys that have no bucket yet.

    Attributes
    ----------
    state : BucketState or None
    sources : sequence of ndarray, flat
    indices : sequence of int
        The arrays that the sources are written to.
    table : Any
        Cache of `Kernels.unpack_all`, passed back to it at the next call.
    """

    state: BucketState | None
    sources: Sequence[Array]
    indices: Indices
    table: Any = None

    def copy_observed(self, outs: Sequence[Array], kernels: Kernels, events: Events) -> None:
        """Copy the sources to arrays, and emit the time."""
        begin = concurrency.perf_counter()
        self.table = kernels.unpack_all(self.sources, outs, self.table)
        seconds = concurrency.perf_counter() - begin
        bucket = None if self.state is None else self.state.bucket.index
        events.emit("unpacked", bucket, sum(each.nbytes for each in self.sources), seconds)


@dataclass(eq=False, slots=True)
class Pull:
    """A pull, sorted by bucket.

    Attributes
    ----------
    keys : sequence of keys
        The key of each array.
    states : sequence of BucketState
        The buckets that the pull flushes, in order.
    parts : sequence of BucketPull
        In the order of buckets.
    to_host : bool
        Whether an array is in host memory.
    written : set of BucketState
        The buckets in whose gradients arrays lie: arrays that `grad_view` returned.
    before : sequence of BucketState
        The buckets that must be complete before the first copy.  The copies of other buckets write
        their gradients, or no value is copied from them.
    logged : LoggedKeys
        The keys in the call log.
    observed : sequence of arrays
        Arrays whose libraries take part in the write; empty in a pull that is cached.
    """

    keys: Sequence[Key]
    states: Sequence[BucketState]
    parts: Sequence[BucketPull]
    to_host: bool
    written: Set[BucketState]
    before: Sequence[BucketState]
    logged: LoggedKeys = field(default_factory=LoggedKeys)
    observed: Sequence[Any] = ()


def select(arrays: Sequence[Array], indices: Indices) -> Sequence[Array]:
    """Return the arrays with the given indices."""
    if isinstance(indices, range):
        return arrays[indices.start : indices.stop]
    return [arrays[index] for index in indices]


def as_range(indices: list[int]) -> Indices:
    """Return consecutive indices as a range, which `select` takes as one slice; others as given."""
    block = range(indices[0], indices[0] + len(indices)) if indices else range(0)
    return block if indices == list(block) else indices


def plan_push(
    values: Mapping[Key, Sequence[Array]], layout: Layout, kernels: Kernels
) -> tuple[Push, list[Array]]:
    """Sort the arrays of a push by bucket; the first push gives keys their slots.

    Returns
    -------
    Push
    list of ndarray
        All arrays as a list, in the order of the keys.  An array that lies in a bucket is copied,
        unless it is its own key's gradient: the push could overwrite it before reading it.
    """
    buckets: dict[int, list[Slot]] = {}
    indices: dict[Key, Indices] = {}
    in_place: set[Key] = set()
    # Before the look at the memory of the buckets: the first slot makes them.
    slots = [layout[key] for key in values]
    listed = [array for arrays in values.values() for array in arrays]
    within = layout.buckets_of_all(listed)
    start = 0
    for slot, (key, arrays) in zip(slots, values.items(), strict=True):
        buckets.setdefault(slot.state.bucket.index, []).append(slot)
        indices[key] = range(start, start + len(arrays))
        if len(arrays) == 1 and (within[start] or not arrays[0].size) and slot.holds(arrays[0]):
            in_place.add(key)
        else:
            for index in indices[key]:
                if within[index]:
                    listed[index] = kernels.copy(listed[index])
        start += len(arrays)
    parts = tuple(
        BucketPush(buckets[number], indices, in_place, len(listed)) for number in sorted(buckets)
    )
    return Push(indices, parts), listed


def plan_pull(reads: Sequence[tuple[Key, Array]], layout: Layout) -> tuple[Pull, list[Array]]:
    """Sort the arrays of a pull by bucket.

    Parameters
    ----------
    reads : sequence of (key, ndarray)
        An array given for several keys receives the value of the last.
    layout : Layout

    Returns
    -------
    Pull
    list of ndarray
        The arrays of `reads`.
    """
    outs = [out for _, out in reads]
    last = {same: index for index, same in enumerate(identities(outs))}
    sources = [layout.source(key) for key, _ in reads]
    states = {state.bucket.index: state for state, _ in sources if state is not None}
    by_bucket: dict[int, list[int]] = {}
    for index in last.values():
        state, _ = sources[index]
        by_bucket.setdefault(-1 if state is None else state.bucket.index, []).append(index)
    parts = tuple(
        BucketPull(
            states.get(number), tuple(sources[index][1] for index in indices), as_range(indices)
        )
        for number, indices in sorted(by_bucket.items())
    )
    flushed = tuple(states[number] for number in sorted(states))
    lent = {
        (source, found[0])
        for (source, _), found in zip(sources, layout.buckets_of_all(outs), strict=True)
        if found is not None
    }
    crossed = {state for source, state in lent if source is not state}
    # An array given for several keys takes the last key's value: a bucket may have no part.
    apart = {*flushed} - {part.state for part in parts}
    pull = Pull(
        keys=[key for key, _ in reads],
        states=flushed,
        parts=parts,
        to_host=any(map(is_on_host, outs)),
        written={state for _, state in lent},
        before=tuple(state for state in flushed if state in crossed or state in apart),
    )
    return pull, outs
