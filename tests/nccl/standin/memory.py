"""Device memory made of host memory, in arrays that CuPy accepts as its own.

Kernels and copies of CuPy cannot run on such an array; addresses, slices, dtypes and flags are as
on a device.
"""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import cupy
import numpy as np
from numpy.typing import NDArray

from tests.nccl.standin.array import StandInArray
from tests.nccl.standin.errors import RefusedByStandIn

ALIGNMENT = 256
GUARD = 512
"""Bytes before and after an allocation that no array may use."""

GUARD_BYTE = 0x5C
POISON = 0xA5
"""Byte of outputs before they are written."""


class Owner:
    """The owner of the memory, alive as long as an array of it."""

    def __init__(self, streams: Any) -> None:
        self.streams = streams


@dataclass(eq=False)
class Allocation:
    """Memory of the device; `stream` was current when it was allocated.

    Attributes
    ----------
    base, start : int
        Addresses of `space` and of the first byte that arrays may use.
    """

    name: str
    space: NDArray[np.uint8]
    first: int
    nbytes: int
    stream: int
    accesses: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.base: int = self.space.ctypes.data
        self.start = self.base + self.first

    def bytes(self, lo: int, hi: int) -> NDArray[np.uint8]:
        """Return the bytes ``[lo, hi)`` as a NumPy array."""
        return self.space[self.first + lo : self.first + hi]

    def check_guards(self) -> None:
        """Refuse writes beside the allocation."""
        around = np.concatenate([self.space[: self.first], self.space[self.first + self.nbytes :]])
        if (around != GUARD_BYTE).any():
            raise RefusedByStandIn(f"something wrote beside {self.name} ({self.nbytes} bytes)")


class Memory:
    """All allocations of one device that something still refers to.

    Parameters
    ----------
    freed : callable
        Called as ``freed(allocation)`` when nothing refers to an allocation any more.
    reuses : bool
        Whether a stream's next allocation of a size gets the memory freed last, as in CuPy's pool.
    """

    def __init__(self, freed: Callable[[Allocation], None], *, reuses: bool = False) -> None:
        self._reuses = reuses
        self._free: defaultdict[tuple[int, int], list[NDArray[np.uint8]]] = defaultdict(list)
        self._live: dict[int, Allocation] = {}
        self._count = 0
        self._freed = freed

    def allocate(self, nbytes: int, stream: int, streams: Any) -> Any:
        """Return a uint8 cupy.ndarray between two guards."""
        self._count += 1
        free = self._free[stream, nbytes]
        space = free.pop() if free else np.zeros(nbytes + 2 * GUARD + ALIGNMENT, np.uint8)
        first = GUARD + -(space.ctypes.data + GUARD) % ALIGNMENT
        space[:first] = space[first + nbytes :] = GUARD_BYTE
        allocation = Allocation(f"memory {self._count}", space, first, nbytes, stream)
        self._live[allocation.start] = allocation
        owner = Owner(streams)
        weakref.finalize(owner, self._drop, allocation).atexit = False
        pointer = cupy.cuda.UnownedMemory(allocation.start, max(nbytes, 1), owner, 0)
        return StandInArray((nbytes,), np.uint8, cupy.cuda.MemoryPointer(pointer, 0))

    def used(self) -> int:
        """Return the bytes of all live allocations."""
        return sum(allocation.nbytes for allocation in list(self._live.values()))

    def _drop(self, allocation: Allocation) -> None:
        """Remove an allocation that nothing refers to any more."""
        del self._live[allocation.start]
        if self._reuses:
            self._free[allocation.stream, allocation.nbytes].append(allocation.space)
        self._freed(allocation)

    def name(self, array: Any, name: str) -> None:
        """Give an array's allocation a name."""
        self.find(array.data.ptr, 0, "name")[0].name = name

    def find(self, address: int, nbytes: int, what: str) -> tuple[Allocation, int]:
        """Return the allocation that contains the bytes, and their offset in it."""
        allocation = self._live.get(address) or self._around(address)
        if allocation is None:
            raise RefusedByStandIn(
                f"{what} touches {nbytes} bytes at {address:#x}, where nothing is allocated"
            )
        offset = address - allocation.start
        if offset + nbytes > allocation.nbytes:
            raise RefusedByStandIn(
                f"{what} touches {nbytes} bytes from {allocation.name}+{offset}, past its "
                f"end at {allocation.nbytes}"
            )
        return allocation, offset

    def _around(self, address: int) -> Allocation | None:
        """Return the allocation that contains an address, or ends there."""
        for allocation in list(self._live.values()):  # other threads may free allocations meanwhile
            if 0 <= address - allocation.start <= allocation.nbytes:
                return allocation
        return None

    def check_live(self, allocation: Allocation, what: str) -> None:
        """Refuse access to freed memory."""
        if self._live.get(allocation.start) is not allocation:
            raise RefusedByStandIn(
                f"{what} touches {allocation.name}, which was freed; refer to all that a graph "
                f"touches for as long as it may be launched"
            )

    def view(self, array: Any) -> tuple[Allocation, int, int, NDArray[Any]]:
        """Return NumPy's view of a device array, with the bytes that it spans."""
        lo = hi = array.data.ptr
        if array.size:
            steps = [(n - 1) * s for n, s in zip(array.shape, array.strides, strict=True)]
            lo += sum(step for step in steps if step < 0)
            hi += sum(step for step in steps if step > 0) + array.dtype.itemsize
        allocation, offset = self.find(lo, hi - lo, "an array")
        view: NDArray[Any] = np.ndarray(
            array.shape,
            array.dtype,
            allocation.space,
            array.data.ptr - allocation.base,
            array.strides,
        )
        return allocation, offset, offset + hi - lo, view

    def check_guards(self) -> None:
        """Refuse writes beside any allocation."""
        for allocation in list(self._live.values()):
            allocation.check_guards()
