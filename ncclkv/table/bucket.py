"""Layout of keys in flat buckets, each of one dtype, op and storage, in registry order."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from math import lcm
from typing import Any

import numpy as np

from ncclkv.table.registry import DENSE, Key, KeySpec

ALIGNMENT = 256
"""Bytes between the first elements of two keys are a multiple of this value."""

Range = tuple[int, int]


@dataclass(frozen=True)
class Entry:
    """Range of a key in its bucket: elements ``[lo, hi)``."""

    spec: KeySpec
    lo: int

    @property
    def key(self) -> Key:
        return self.spec.key

    @property
    def hi(self) -> int:
        return self.lo + self.spec.size


@dataclass(frozen=True)
class Bucket:
    """A flat array that several keys share.

    Attributes
    ----------
    index : int
        Its index in the store, from 0.
    dtype : numpy.dtype
    op : str
        The op of all its keys.
    storage : str
        The storage of all its keys.
    entries : tuple of Entry
        In registry order, which is also the order in the array.
    multiple : int
        The length is a multiple of so many elements.
    """

    index: int
    dtype: np.dtype[Any]
    op: str
    storage: str
    entries: tuple[Entry, ...]
    multiple: int = 1

    @cached_property
    def count(self) -> int:
        """Elements, padding included."""
        return _aligned(self.entries[-1].hi, self.dtype.itemsize, self.multiple)

    @cached_property
    def lows(self) -> list[int]:
        """First element of each entry."""
        return [entry.lo for entry in self.entries]

    @property
    def nbytes(self) -> int:
        """Bytes of its gradients, and as many of its weights."""
        return self.count * self.dtype.itemsize

    @cached_property
    def entry_indices(self) -> dict[Key, int]:
        """Index of each key's entry."""
        return {entry.key: index for index, entry in enumerate(self.entries)}

    def ranges(self, keys: Iterable[Key]) -> list[Range]:
        """Return the longest ranges that hold `keys` and no other key."""
        found: list[Range] = []
        before = None
        for index in sorted(map(self.entry_indices.__getitem__, keys)):
            entry = self.entries[index]
            if before is not None and index == before + 1:
                # The padding between two keys is reduced with them: it is zero on all ranks.
                found[-1] = (found[-1][0], entry.hi)
            else:
                found.append((entry.lo, entry.hi))
            before = index
        return [(lo, hi) for lo, hi in found if lo < hi]


def make_buckets(
    specs: Iterable[KeySpec], bucket_bytes: int, first: int = 0, multiple: int = 1
) -> list[Bucket]:
    """Return new buckets for keys.

    Parameters
    ----------
    specs : iterable of KeySpec
        In registry order.
    bucket_bytes : int
        Largest size of a bucket of several keys; a larger key has a bucket of its own.  With 0
        every key has, and always each key that is not dense.
    first : int
        The index of the first new bucket.
    multiple : int
        The length of each bucket is a multiple of so many elements.
    """
    buckets: list[list[Entry]] = []
    open_buckets: dict[tuple[np.dtype[Any], str, str], list[Entry]] = {}
    for spec in specs:
        kind = _kind(spec)
        entries = open_buckets.get(kind)
        lo = _aligned(entries[-1].hi, spec.dtype.itemsize) if entries else 0
        if spec.nbytes > bucket_bytes or bucket_bytes == 0 or spec.storage != DENSE:
            buckets.append([Entry(spec, 0)])
        elif entries and lo * spec.dtype.itemsize + spec.nbytes <= bucket_bytes:
            entries.append(Entry(spec, lo))
        else:
            open_buckets[kind] = [Entry(spec, 0)]
            buckets.append(open_buckets[kind])
    return [
        Bucket(index, *_kind(entries[0].spec), tuple(entries), multiple)
        for index, entries in enumerate(buckets, first)
    ]


def _kind(spec: KeySpec) -> tuple[np.dtype[Any], str, str]:
    """Return the properties that all keys of a bucket share: dtype, op and storage."""
    return spec.dtype, spec.op, spec.storage


def _aligned(elements: int, itemsize: int, multiple: int = 1) -> int:
    """Return the next multiple of `ALIGNMENT` bytes and of `multiple`, in elements."""
    step = lcm(ALIGNMENT // itemsize, multiple)
    return -(-elements // step) * step
