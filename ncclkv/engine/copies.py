"""Copies between users' arrays and buckets, a bucket's all at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ncclkv.arrays.memory import identity
from ncclkv.engine.state import Array, BucketState, Slot
from ncclkv.kernels.base import Kernels

Pairs = list[tuple[Slot, Array]]
"""Keys' places, each with an array of a user's."""


def pack(kernels: Kernels, pairs: Pairs) -> None:
    """Copy arrays into their keys' gradients."""
    for state, found in _by_bucket(pairs):
        arrays, slots = [array for _, array in found], [slot.gradient for slot, _ in found]
        place = "pack", found[0][0].entry.key
        state.tables[place] = kernels.pack_all(arrays, slots, state.tables.get(place))


def unpack(kernels: Kernels, pairs: Pairs) -> None:
    """Copy keys' weights into arrays; one that stands for several keys gets the last one's."""
    last = {identity(array): (slot, array) for slot, array in pairs if array.size}
    for state, found in _by_bucket(list(last.values())):
        slots, arrays = [slot.weight for slot, _ in found], [array for _, array in found]
        place = "unpack", found[0][0].entry.key
        state.tables[place] = kernels.unpack_all(slots, arrays, state.tables.get(place))


def _by_bucket(pairs: Sequence[tuple[Slot, Array]]) -> Iterable[tuple[BucketState, Pairs]]:
    """Pairs, sorted into the keys' buckets."""
    found: dict[int, tuple[BucketState, Pairs]] = {}
    for slot, array in pairs:
        found.setdefault(slot.state.layout.index, (slot.state, []))[1].append((slot, array))
    return found.values()
