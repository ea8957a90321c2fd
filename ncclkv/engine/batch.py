"""`Push` and `Pull`: the arrays of one call, sorted by bucket.

Both refer to arrays by their index in the list of the call, and hold none of them.  So one object
serves every later call with the same keys, shapes and dtypes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from ncclkv import concurrency
from ncclkv.arrays.memory import identities, is_on_host
from ncclkv.comm.diagnosis.call_ring import LoggedKeys
from ncclkv.engine.bucket_push import Indices, as_range
from ncclkv.engine.events import Events
from ncclkv.engine.layout import Layout
from ncclkv.engine.storage import Array, StoredBucket, StoredKey, StoredPush
from ncclkv.engine.storage_table import STORAGES
from ncclkv.errors import UsageError
from ncclkv.kernels.base import Kernels
from ncclkv.table.registry import Key


@dataclass(eq=False, slots=True)
class Push:
    """A push, sorted by bucket.

    Attributes
    ----------
    indices : dict of key to sequence of int
        The keys in the order given, and the indices of their arrays.
    by_bucket : sequence of StoredPush
        One for each bucket, in the order of buckets.
    logged : LoggedKeys
        The keys in the call log.
    several : bool
        Whether a key has several arrays.
    in_place : bool
        Whether an array is its own key's gradient.
    whole : bool
        Whether the push has every key of its buckets, to be copied straight to the weights.
    """

    indices: dict[Key, Indices]
    by_bucket: Sequence[StoredPush]
    logged: LoggedKeys = field(default_factory=LoggedKeys)
    several: bool = field(init=False)
    in_place: bool = field(init=False)
    whole: bool = field(init=False)

    def __post_init__(self) -> None:
        self.several = any(stored.several for stored in self.by_bucket)
        self.in_place = any(stored.in_place for stored in self.by_bucket)
        self.whole = all(stored.whole for stored in self.by_bucket)

    def check_free(self, *, missing_zeros: bool) -> None:
        """Refuse a push whose gradients are in use.

        `missing_zeros` means that other ranks may push other keys.

        Raises
        ------
        UsageError
        """
        for stored in self.by_bucket:
            state = stored.state
            if missing_zeros:
                for key in stored.keys & state.waiting:
                    raise UsageError(
                        f"push of key {key!r}: the key was pushed and not flushed, and with "
                        f"missing='zeros' other ranks may not have pushed it; pull a key, or call "
                        f"wait(), between two pushes",
                        key=key,
                    )
            for slot in stored.in_place:
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
    state : StoredBucket or None
    sources : sequence of ndarray, flat
    indices : sequence of int
        The arrays that the sources are written to.
    table : Any
        Cache of `Kernels.unpack_all`, passed back to it at the next call.
    """

    state: StoredBucket | None
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
    states : sequence of StoredBucket
        The buckets that the pull flushes, in order.
    by_bucket : sequence of BucketPull
        In the order of buckets.
    to_host : bool
        Whether an array is in host memory.
    written : set of StoredBucket
        The buckets in whose gradients arrays lie: arrays that `grad_view` returned.
    before : sequence of StoredBucket
        The buckets that must be complete before the first copy.  The copies of other buckets write
        their gradients, or no value is copied from them.
    logged : LoggedKeys
        The keys in the call log.
    observed : sequence of arrays
        Arrays whose libraries take part in the write; empty in a pull that is cached.
    """

    keys: Sequence[Key]
    states: Sequence[StoredBucket]
    by_bucket: Sequence[BucketPull]
    to_host: bool
    written: Set[StoredBucket]
    before: Sequence[StoredBucket]
    logged: LoggedKeys = field(default_factory=LoggedKeys)
    observed: Sequence[Any] = ()


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
    buckets: dict[int, list[StoredKey]] = {}
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
    stored = tuple(
        STORAGES[found[0].state.bucket.storage].push(found, indices, in_place, len(listed))
        for _, found in sorted(buckets.items())
    )
    return Push(indices, stored), listed


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
    indices_of: dict[int, list[int]] = {}
    for index in last.values():
        state, _ = sources[index]
        indices_of.setdefault(-1 if state is None else state.bucket.index, []).append(index)
    pulls = tuple(
        BucketPull(
            states.get(bucket_index),
            tuple(sources[index][1] for index in indices),
            as_range(indices),
        )
        for bucket_index, indices in sorted(indices_of.items())
    )
    flushed = tuple(states[bucket_index] for bucket_index in sorted(states))
    lent = {
        (source, found[0])
        for (source, _), found in zip(sources, layout.buckets_of_all(outs), strict=True)
        if found is not None
    }
    crossed = {state for source, state in lent if source is not state}
    # An array given for several keys takes the last key's value: a bucket may have none.
    apart = {*flushed} - {each.state for each in pulls}
    pull = Pull(
        keys=[key for key, _ in reads],
        states=flushed,
        by_bucket=pulls,
        to_host=any(map(is_on_host, outs)),
        written={state for _, state in lent},
        before=tuple(state for state in flushed if state in crossed or state in apart),
    )
    return pull, outs
