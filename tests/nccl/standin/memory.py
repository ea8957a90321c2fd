"""Device memory that is host memory, in arrays that CuPy takes for its own.

No kernel can run on such an array, and no copy of CuPy's; addresses, slices, dtypes and flags are
as on a device.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import cupy
import numpy as np
from numpy.typing import NDArray

from tests.nccl.standin.array import StandInArray
from tests.nccl.standin.contract import ContractBroken

ALIGNMENT = 256
GUARD = 512
"""Bytes on either side of an allocation that belong to nobody."""

GUARD_BYTE = 0x5C
POISON = 0xA5
"""What an output holds until it is written."""


class Owner:
    """Lives as long as an array refers to the memory."""

    def __init__(self, streams: Any) -> None:
        self.streams = streams


@dataclass(eq=False)
class Allocation:
    """Memory of the device; `stream` was current when it was made."""

    name: str
    space: NDArray[np.uint8]
    first: int
    nbytes: int
    stream: int
    accesses: list[Any] = field(default_factory=list)

    @property
    def start(self) -> int:
        """Its address."""
        return self.space.ctypes.data + self.first

    def bytes(self, lo: int, hi: int) -> NDArray[np.uint8]:
        """Its bytes ``[lo, hi)``, as NumPy sees them."""
        return self.space[self.first + lo : self.first + hi]

    def check_guards(self) -> None:
        """Refuse what was written beside it."""
        around = np.concatenate([self.space[: self.first], self.space[self.first + self.nbytes :]])
        if (around != GUARD_BYTE).any():
            raise ContractBroken(f"something wrote beside {self.name} ({self.nbytes} bytes)")


class Memory:
    """All allocations of one device that somebody still refers to.

    Parameters
    ----------
    freed : callable
        ``freed(allocation)``, called when nobody refers to it any more.
    """

    def __init__(self, freed: Callable[[Allocation], None]) -> None:
        self._live: dict[int, Allocation] = {}
        self._count = 0
        self._freed = freed

    def allocate(self, nbytes: int, stream: int, streams: Any) -> Any:
        """A zeroed uint8 cupy.ndarray between two guards."""
        self._count += 1
        space = np.zeros(nbytes + 2 * GUARD + ALIGNMENT, np.uint8)
        first = GUARD + -(space.ctypes.data + GUARD) % ALIGNMENT
        space[:first] = space[first + nbytes :] = GUARD_BYTE
        allocation = Allocation(f"memory {self._count}", space, first, nbytes, stream)
        self._live[allocation.start] = allocation
        owner = Owner(streams)
        weakref.finalize(owner, self._drop, allocation).atexit = False
        pointer = cupy.cuda.UnownedMemory(allocation.start, max(nbytes, 1), owner, 0)
        return StandInArray((nbytes,), np.uint8, cupy.cuda.MemoryPointer(pointer, 0))

    def used(self) -> int:
        """The bytes of all that somebody refers to."""
        return sum(allocation.nbytes for allocation in list(self._live.values()))

    def _drop(self, allocation: Allocation) -> None:
        """Nobody can name the memory any more."""
        del self._live[allocation.start]
        self._freed(allocation)

    def name(self, array: Any, name: str) -> None:
        """Call an array's allocation something."""
        self.find(array.data.ptr, 0, "name")[0].name = name

    def find(self, address: int, nbytes: int, what: str) -> tuple[Allocation, int]:
        """The allocation that has all of some bytes, and where they begin in it."""
        for allocation in list(self._live.values()):  # others may be freed meanwhile
            offset = address - allocation.start
            if 0 <= offset <= allocation.nbytes:
                if offset + nbytes > allocation.nbytes:
                    raise ContractBroken(
                        f"{what} touches {nbytes} bytes from {allocation.name}+{offset}, past its "
                        f"end at {allocation.nbytes}"
                    )
                return allocation, offset
        raise ContractBroken(
            f"{what} touches {nbytes} bytes at {address:#x}, where nothing is allocated"
        )

    def check_live(self, allocation: Allocation, what: str) -> None:
        """Refuse what would touch memory that nobody refers to any more."""
        if self._live.get(allocation.start) is not allocation:
            raise ContractBroken(
                f"{what} touches {allocation.name}, which was freed; refer to all that a graph "
                f"touches for as long as it may be launched"
            )

    def view(self, array: Any) -> tuple[Allocation, int, int, NDArray[Any]]:
        """A device array as NumPy sees it, with the bytes that it spans."""
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
            array.data.ptr - allocation.space.ctypes.data,
            array.strides,
        )
        return allocation, offset, offset + hi - lo, view

    def check_guards(self) -> None:
        """Refuse what was written beside any allocation."""
        for allocation in list(self._live.values()):
            allocation.check_guards()
