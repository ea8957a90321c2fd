"""`Push` and `Pull`: the arrays of one call, sorted by bucket once and used for every repeat of it.

Both refer to arrays by index in the list that the call was given, and hold none of them, so that
one object serves every list of arrays with the same keys, shapes and dtypes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ncclkv.arrays.memory import identity, is_on_host
from ncclkv.comm.diagnosis.call_log import LoggedKeys
from ncclkv.engine.bucket_state import Array, BucketState, Slot
from ncclkv.kernels.base import Kernels
from ncclkv.table.registry import Key

Indices = Sequence[int]
"""Indices of arrays in the list of a call; a range where they are consecutive."""


@dataclass(eq=False)
class Targets:
    """Flat slices of a bucket that the arrays of a `BucketPush` are written to, in its order.

    Attributes
    ----------
    single : list of ndarray
        Slices of the keys with one array each.
    several : list of ndarray
        Slices of the keys with several arrays.
    table : Any
        Cache of `Kernels.pack_all`, passed back to it at the next call.
    """

    single: list[Array] = field(default_factory=list)
    several: list[Array] = field(default_factory=list)
    table: Any = None


@dataclass(eq=False)
class BucketPush:
    """The arrays of a push that belong into one bucket.

    Attributes
    ----------
    state : BucketState
    keys : set of keys
    indices : list of int
        Arrays of the keys with one array each.
    several : list of (list of int, str)
        Arrays and op of each key with several arrays.
    gradients, weights : Targets
        Slices that the arrays are written to: gradients, or weights where the sum replaces them.
    in_place : list of Slot
        Keys whose array is their own gradient, so that nothing is copied.
    """

    state: BucketState
    keys: set[Key] = field(default_factory=set)
    indices: Indices = range(0)
    several: list[tuple[Indices, str]] = field(default_factory=list)
    gradients: Targets = field(default_factory=Targets)
    weights: Targets = field(default_factory=Targets)
    in_place: list[Slot] = field(default_factory=list)

    def add(self, slot: Slot, indices: Indices, *, in_place: bool) -> bool:
        """Include a key; return whether the caller must add its one index to `indices`."""
        self.keys.add(slot.entry.key)
        if in_place:
            self.in_place.append(slot)
            return False
        single = len(indices) == 1
        if not single:
            self.several.append((indices, slot.entry.spec.op))
        for targets, flat in ((self.gradients, slot.gradient), (self.weights, slot.weight)):
            (targets.single if single else targets.several).append(flat)
        return single

    def copy_in(self, arrays: Sequence[Array], targets: Targets, kernels: Kernels) -> None:
        """Write this rank's sum of each key's arrays to the key's slice in `targets`."""
        if self.several:
            for (indices, op), flat in zip(self.several, targets.several, strict=True):
                kernels.combine(select(arrays, indices), flat, op)
        if self.indices:
            indices = self.indices
            values = arrays if len(indices) == len(arrays) else select(arrays, indices)
            targets.table = kernels.pack_all(values, targets.single, targets.table)


@dataclass(eq=False)
class Push:
    """A push, sorted by bucket.

    Attributes
    ----------
    indices : dict of key to sequence of int
        The keys in the order given, and the indices of their arrays.
    parts : list of BucketPush
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
    parts: list[BucketPush]
    logged: LoggedKeys = field(default_factory=LoggedKeys)

    def __post_init__(self) -> None:
        self.several = any(part.several for part in self.parts)
        self.in_place = any(part.in_place for part in self.parts)
        self.whole = not self.in_place and all(
            len(part.keys) == len(part.state.bucket.entries) for part in self.parts
        )


@dataclass(eq=False)
class BucketPull:
    """The arrays of a pull that are read from one bucket, or from keys that have no bucket yet.

    Attributes
    ----------
    state : BucketState or None
    sources : list of ndarray, flat
    indices : list of int
        The arrays that the sources are written to.
    table : Any
        Cache of `Kernels.unpack_all`, passed back to it at the next call.
    """

    state: BucketState | None
    sources: list[Array]
    indices: Indices
    table: Any = None


@dataclass(eq=False)
class Pull:
    """A pull, sorted by bucket.

    Attributes
    ----------
    keys : list of keys
        The key of each array.
    states : list of BucketState
        The buckets that the pull flushes, in order.
    parts : list of BucketPull
        In the order of buckets.
    to_host : bool
        Whether an array is in host memory.
    logged : LoggedKeys
        The keys in the call log.
    tensors : sequence of torch.Tensor
        Tensors that are written to; empty in a pull that is cached.
    """

    keys: list[Key]
    states: list[BucketState]
    parts: list[BucketPull]
    to_host: bool
    logged: LoggedKeys = field(default_factory=LoggedKeys)
    tensors: Sequence[Any] = ()


def select(arrays: Sequence[Array], indices: Indices) -> Sequence[Array]:
    """Return the arrays with the given indices."""
    if isinstance(indices, range):
        return arrays[indices.start : indices.stop]
    return [arrays[index] for index in indices]


def as_range(indices: list[int]) -> Indices:
    """Return consecutive indices as a range, so that `select` is one slice; others as given."""
    block = range(indices[0], indices[0] + len(indices)) if indices else range(0)
    return block if indices == list(block) else indices


def plan_push(
    values: Mapping[Key, Sequence[Array]],
    slot_of: Callable[[Key], Slot],
    detached: Callable[[Array], Array],
) -> tuple[Push, list[Array]]:
    """Sort the arrays of a push by bucket.

    Parameters
    ----------
    values : mapping of key to sequence of ndarray
    slot_of : callable
        Returns the slot of a key.
    detached : callable
        Returns an array, or a copy of it if the push could overwrite it while reading.

    Returns
    -------
    Push
    list of ndarray
        All arrays as a list, in the order of the keys, each passed through `detached`.
    """
    parts: dict[int, BucketPush] = {}
    singles: dict[int, list[int]] = {}
    of_key: dict[Key, Indices] = {}
    listed: list[Array] = []
    for key, arrays in values.items():
        slot = slot_of(key)
        number = slot.state.bucket.index
        part = parts.setdefault(number, BucketPush(slot.state))
        indices = of_key[key] = range(len(listed), len(listed) + len(arrays))
        in_place = len(arrays) == 1 and slot.holds(arrays[0])
        if part.add(slot, indices, in_place=in_place):
            singles.setdefault(number, []).append(len(listed))
        listed += arrays if in_place else map(detached, arrays)
    for number, found in singles.items():
        parts[number].indices = as_range(found)
    return Push(of_key, [parts[number] for number in sorted(parts)]), listed


def plan_pull(
    reads: Sequence[tuple[Key, Array]],
    source_of: Callable[[Key], tuple[BucketState | None, Array]],
) -> tuple[Pull, list[Array]]:
    """Sort the arrays of a pull by bucket.

    Parameters
    ----------
    reads : sequence of (key, ndarray)
        An array given for several keys receives the value of the last.
    source_of : callable
        Returns the bucket of a key, or None before it has one, and its flat value.

    Returns
    -------
    Pull
    list of ndarray
        The arrays of `reads`.
    """
    last = {identity(out): index for index, (_, out) in enumerate(reads)}
    sources = [source_of(key) for key, _ in reads]
    states = {state.bucket.index: state for state, _ in sources if state is not None}
    by_bucket: dict[int, list[int]] = {}
    for index in last.values():
        state, _ = sources[index]
        by_bucket.setdefault(-1 if state is None else state.bucket.index, []).append(index)
    parts = [
        BucketPull(states.get(number), [sources[index][1] for index in indices], as_range(indices))
        for number, indices in sorted(by_bucket.items())
    ]
    outs = [out for _, out in reads]
    flushed = [states[number] for number in sorted(states)]
    return Pull([key for key, _ in reads], flushed, parts, any(map(is_on_host, outs))), outs
