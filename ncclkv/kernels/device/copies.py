"""Launches that copy many arrays at once."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ncclkv.kernels.device.kernel_args import COPIES, COPY_BYTES, PIECES, batches, first_blocks, new

DeviceArray = Any
"""A ``cupy.ndarray``; where it is said a ``numpy.ndarray`` too."""

Blocks = tuple[int, NDArray[Any]]
"""Number of blocks and argument of a launch."""


class _Place(NamedTuple):
    """Device, address and layout of an array."""

    device: int
    address: int
    nbytes: int
    dtype: np.dtype[Any]
    in_order: bool

    def alike(self, other: _Place) -> bool:
        """Return whether a copy between two arrays is a copy of bytes within one device."""
        return (
            self.in_order
            and other.in_order
            and self.dtype == other.dtype
            and self.device == other.device
        )


class CopyTable:
    """Launches that copy each of `sources` to the destination of the same index.

    A table depends on addresses, not on elements, so it serves until `matches` returns False.  The
    table keeps no array alive.

    Parameters
    ----------
    sources, destinations : sequence of cupy.ndarray or numpy.ndarray
        As many of the one as of the other, and each pair of one size.

    Attributes
    ----------
    launches : list of (int, ndarray)
        Blocks and argument of each launch of ``copy``.
    alone : list of int
        The numbers of the pairs that no launch copies: one is in host memory, on another device
        than the other, or not in C order, or their dtypes differ.
    """

    def __init__(self, sources: Sequence[DeviceArray], destinations: Sequence[DeviceArray]) -> None:
        arrays = [*sources, *destinations]
        self._seen = [weakref.ref(array) for array in arrays]
        self._places = [_place(array) for array in arrays]
        pairs = zip(self._places[: len(sources)], self._places[len(sources) :], strict=True)
        together: list[tuple[int, int, int]] = []
        self.alone: list[int] = []
        for number, (source, destination) in enumerate(pairs):
            if source is None or destination is None or not source.alike(destination):
                self.alone.append(number)
            else:
                together.append((source.address, destination.address, source.nbytes))
        columns = np.array(together, np.uint64).reshape(-1, 3).T
        self.launches = plan_copies(columns[0], columns[1], columns[2].astype(np.int64))

    def matches(self, sources: Sequence[DeviceArray], destinations: Sequence[DeviceArray]) -> bool:
        """Return whether the table fits: the same arrays, or others at their addresses.

        The same arrays are recognised in a few microseconds a hundred.
        """
        arrays = [*sources, *destinations]
        if len(arrays) != len(self._places):
            return False
        seen = zip(self._seen, arrays, strict=True)
        others = [number for number, (old, array) in enumerate(seen) if old() is not array]
        if any(_place(arrays[number]) != self._places[number] for number in others):
            return False
        for number in others:
            self._seen[number] = weakref.ref(arrays[number])
        return True


def plan_copies(
    sources: NDArray[np.uint64], destinations: NDArray[np.uint64], nbytes: NDArray[np.int64]
) -> list[Blocks]:
    """Lay out the launches that copy `nbytes` bytes from each source to its destination.

    Parameters
    ----------
    sources, destinations : ndarray of uint64, shape (n,)
        Addresses.
    nbytes : ndarray of int64, shape (n,)

    Returns
    -------
    list of (int, ndarray)
        Blocks and argument of each launch.
    """
    launches = []
    for batch in batches(len(nbytes), PIECES):
        count = batch.stop - batch.start
        first = first_blocks(nbytes[batch], COPY_BYTES)
        argument = new(COPIES)
        argument["source"][:count] = sources[batch]
        argument["destination"][:count] = destinations[batch]
        argument["nbytes"][:count] = nbytes[batch]
        argument["first"][: count + 1] = first
        argument["count"] = count
        launches.append((int(first[-1]), argument))
    return launches


def _place(array: DeviceArray) -> _Place | None:
    """Return the properties that decide how an array is copied; None in host memory."""
    if isinstance(array, np.ndarray):
        return None
    return _Place(
        array.device.id,
        array.data.ptr,
        array.nbytes,
        array.dtype,
        in_order=bool(array.flags.c_contiguous),
    )
