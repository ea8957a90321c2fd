"""`TopDecoding`: the sum of the largest elements of several senders, as one rank adds it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ncclkv.comm.programs.extents import KeyExtents
from ncclkv.comm.types import Apply, Buffer
from ncclkv.comm.wire import Range
from ncclkv.compress.coding import coding_of
from ncclkv.kernels.base import Kernels
from ncclkv.kernels.host import HostKernels


@dataclass(eq=False)
class TopDecoding:
    """The sum of payloads with indices, a `PayloadSum`: added in the order of their senders.

    Payloads are packed by putting them one after another.

    Attributes
    ----------
    extents : KeyExtents
        Of the whole range.
    senders : int
        The count of payloads that are summed.
    receive : ndarray of float32, shape (n,)
        Receives the elements of the sum that this rank decodes.
    divisor : int or None
        The count that the sum is divided by.
    kernels : Kernels
        The arithmetic in the memory of the arrays.
    """

    extents: KeyExtents
    senders: int
    receive: Buffer
    divisor: int | None = None
    kernels: Kernels = field(default_factory=HostKernels)
    _made: dict[Range, Callable[[Buffer, Buffer], None]] = field(default_factory=dict, init=False)

    def write(self, payloads: Sequence[Buffer], bounds: Range, apply: Apply | None) -> None:
        lo, hi = bounds
        out = self.receive[lo:hi]
        self.kernels.fill(out, 0)
        for payload in payloads:
            self._adding(bounds)(payload, out)
        if self.divisor is not None:
            self.kernels.divide(out, self.divisor)
        if apply is not None:
            apply(lo, hi)

    def pack(self, payloads: Sequence[Buffer], bounds: Range, into: Buffer) -> None:
        for payload, place in zip(payloads, self._parts(into, bounds), strict=True):
            self.kernels.pack(payload, place)

    def write_packed(self, packed: Buffer, bounds: Range, apply: Apply | None) -> None:
        self.write(self._parts(packed, bounds), bounds, apply)

    def _parts(self, packed: Buffer, bounds: Range) -> list[Buffer]:
        """Return the payload of each sender in a packed sum."""
        begin, end = self.extents.codes(bounds)
        size = end - begin
        return [packed[sender * size : (sender + 1) * size] for sender in range(self.senders)]

    def _adding(self, bounds: Range) -> Callable[[Buffer, Buffer], None]:
        """Return the function that adds what a sender sent to the elements `bounds`."""
        if bounds not in self._made:
            extents, coding = self.extents, coding_of(self.kernels)
            entries = extents.within(bounds)
            self._made[bounds] = coding.adding(extents.codec, entries, bounds[0])
        return self._made[bounds]
