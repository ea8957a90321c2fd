"""Copy tables: the launches that copy many arrays at once."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ncclkv.kernels.device.kernel_args import COPIES, COPY_BYTES, PlannedLaunch, plan_launches

DeviceArray: TypeAlias = Any
"""A ``cupy.ndarray``, or a ``numpy.ndarray`` where the documentation allows it."""

Arrays: TypeAlias = Sequence[DeviceArray]


class _Location(NamedTuple):
    """Device, address and layout of an array."""

    device: int
    address: int
    nbytes: int
    dtype: np.dtype[Any]
    in_order: bool

    def matches(self, other: _Location) -> bool:
        """Return whether a copy between two arrays is a copy of bytes within one device."""
        return (
            self.in_order
            and other.in_order
            and self.dtype == other.dtype
            and self.device == other.device
        )


class CopyTable:
    """Launches that copy each source to the destination of the same index.

    A table depends on addresses, not on elements, and is valid until `matches` returns False.  A
    table keeps no array alive.

    Parameters
    ----------
    sources, destinations : sequence of cupy.ndarray or numpy.ndarray
        Equal numbers of arrays; the two arrays of an index have the same size.

    Attributes
    ----------
    launches : list of PlannedLaunch
        Launches of ``copy``.
    alone : list of int
        Indices of the pairs that no launch copies: an array is in host memory or not in C order, or
        their devices or dtypes differ.
    """

    def __init__(self, sources: Arrays, destinations: Arrays) -> None:
        arrays = [*sources, *destinations]
        self._seen = [weakref.ref(array) for array in arrays]
        self._locations = [_locate(array) for array in arrays]
        pairs = zip(self._locations[: len(sources)], self._locations[len(sources) :], strict=True)
        together: list[tuple[int, int, int]] = []
        self.alone: list[int] = []
        for index, (source, destination) in enumerate(pairs):
            if source is None or destination is None or not source.matches(destination):
                self.alone.append(index)
            else:
                together.append((source.address, destination.address, source.nbytes))
        columns = np.array(together, np.uint64).reshape(-1, 3).T
        self.launches = plan_copies(columns[0], columns[1], columns[2].astype(np.int64))

    def matches(self, sources: Arrays, destinations: Arrays) -> bool:
        """Return whether the table fits: the same arrays, or equal arrays at their addresses.

        A hundred of the same arrays are recognised in a few microseconds.
        """
        arrays = [*sources, *destinations]
        if len(arrays) != len(self._locations):
            return False
        seen = zip(self._seen, arrays, strict=True)
        others = [index for index, (old, array) in enumerate(seen) if old() is not array]
        if any(_locate(arrays[index]) != self._locations[index] for index in others):
            return False
        for index in others:
            self._seen[index] = weakref.ref(arrays[index])
        return True


def plan_copies(
    sources: NDArray[np.uint64], destinations: NDArray[np.uint64], nbytes: NDArray[np.int64]
) -> list[PlannedLaunch]:
    """Plan the launches that copy bytes from addresses to addresses.

    Parameters
    ----------
    sources, destinations : ndarray of uint64, shape (n,)
        Addresses.
    nbytes : ndarray of int64, shape (n,)
    """
    launches = plan_launches(COPIES, nbytes, COPY_BYTES)
    for _, argument, pieces in launches:
        count = argument["count"]
        argument["source"][:count] = sources[pieces]
        argument["destination"][:count] = destinations[pieces]
        argument["nbytes"][:count] = nbytes[pieces]
    return launches


def _locate(array: DeviceArray) -> _Location | None:
    """Return the properties that decide how an array is copied; None in host memory."""
    if isinstance(array, np.ndarray):
        return None
    return _Location(
        array.device.id,
        array.data.ptr,
        array.nbytes,
        array.dtype,
        in_order=bool(array.flags.c_contiguous),
    )
