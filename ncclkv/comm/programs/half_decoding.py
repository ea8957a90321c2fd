"""`HalfDecoding`: the sum of arrays of 16-bit floats, as one rank makes, packs and writes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ncclkv.arrays.dtypes import named
from ncclkv.comm.programs.extents import word
from ncclkv.comm.types import Apply, Buffer
from ncclkv.comm.wire import Range
from ncclkv.compress.coding import coding_of
from ncclkv.compress.half import Half
from ncclkv.kernels.base import Kernels


@dataclass(eq=False)
class HalfDecoding:
    """The sum of rounded arrays, a `PayloadSum`: it is rounded to 16 bits once more.

    Attributes
    ----------
    codec : Half
    op : str
        The op that combines payloads: for averages "sum", as each part was divided.
    receive : ndarray of float32 or float64, shape (n,)
        Receives the elements of the sum that this rank decodes.
    kernels : Kernels
    longest : int
        The most elements that are written from payloads at once.
    """

    codec: Half
    op: str
    receive: Buffer
    kernels: Kernels
    longest: int

    def __post_init__(self) -> None:
        self._coding = coding_of(self.kernels)
        self._dtype = named(self.codec.wire_dtype, self.codec.name)
        self._total = self.kernels.empty((min(self._coding.block, self.longest),), self._dtype)

    def write(self, payloads: Sequence[Buffer], bounds: Range, apply: Apply | None) -> None:
        begin, end = bounds
        first = word(begin, self.codec.unit)
        for lo in range(begin, end, self._coding.block):
            hi = min(lo + self._coding.block, end)
            total = self._total[: hi - lo]
            self._sum(payloads, slice(lo - first, hi - first), total)
            self._write(total, lo, hi, apply)

    def pack(self, payloads: Sequence[Buffer], bounds: Range, into: Buffer) -> None:
        count = bounds[1] - bounds[0]
        self._sum(payloads, slice(0, count), into.view(self._dtype)[:count])

    def write_packed(self, packed: Buffer, bounds: Range, apply: Apply | None) -> None:
        self._write(packed.view(self._dtype)[: bounds[1] - bounds[0]], *bounds, apply)

    def _sum(self, payloads: Sequence[Buffer], elements: slice, total: Buffer) -> None:
        """Set `total` to the sum of some elements of the payloads."""
        parts = [payload.view(self._dtype)[elements] for payload in payloads]
        self.kernels.reduce(parts, total, self.op)

    def _write(self, total: Buffer, lo: int, hi: int, apply: Apply | None) -> None:
        """Write elements ``[lo, hi)`` of the sum, and update them."""
        self._coding.widen(self.codec, total, self.receive[lo:hi])
        if lo < hi and apply is not None:
            apply(lo, hi)
