"""`LowRankSum`: a sum of matrices, as the product of two narrow ones that ranks exchange.

Ranks sum the matrices P, and with them all keys that are too short to be compressed; then they sum
the matrices Q.  A rank needs the whole product to know what it has not sent.  So each rank makes
the sums of all keys, where its gradients are, also if it receives a part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ncclkv.comm.programs.decoded import Decoded
from ncclkv.comm.programs.ordered_sum import sums_of_chunks
from ncclkv.comm.transport import Steps
from ncclkv.comm.types import Apply, Buffer
from ncclkv.comm.wire import Wire
from ncclkv.compress.basis import Basis
from ncclkv.compress.factoring import Factoring
from ncclkv.compress.powersgd import PowerSGD
from ncclkv.kernels.base import Arrays, Kernels
from ncclkv.kernels.host import HostKernels


class Copies:
    """Copies of some arrays to others, each time from the same ones.

    Parameters
    ----------
    kernels : Kernels
    sources, targets : sequence of array
    """

    def __init__(self, kernels: Kernels, sources: Arrays, targets: Arrays) -> None:
        self._kernels = kernels
        self._sources, self._targets = sources, targets
        self._table: Any = None

    def __call__(self) -> None:
        if self._sources:
            self._table = self._kernels.pack_all(self._sources, self._targets, self._table)


class Products(NamedTuple):
    """The arrays of a launch in which keys are compressed.

    Attributes
    ----------
    bases : sequence of Basis
        Those of the keys that are compressed in this launch.
    factoring : Factoring
        Of their matrices, of which all P are in `first`, and all Q in `second`.
    to_first, from_first : Copies
        Of the gradients of keys that are never compressed, to their places in `first`, and back.
    idle : sequence of array
        Parts of `first` and `second` of keys that are compressed later.
    first, second : array of float32
        What ranks sum.
    """

    bases: Sequence[Basis]
    factoring: Factoring
    to_first: Copies
    from_first: Copies
    idle: Sequence[Buffer]
    first: Buffer
    second: Buffer


class Exchange(NamedTuple):
    """The arrays of a launch: a key is a matrix, a short key, or in a whole range.

    Attributes
    ----------
    bases : sequence of Basis
        Those of all keys that are compressed now or later.
    whole : sequence of array
        Ranges of gradients that are not compressed in this launch.
    products : Products or None
    """

    bases: Sequence[Basis]
    whole: Sequence[Buffer]
    products: Products | None = None


@dataclass(frozen=True)
class LowRankSum:
    """A sum of the gradients of a range, as one rank makes it.

    Attributes
    ----------
    codec : PowerSGD
    exchange : callable
        Returns the `Exchange` of the next launch, alike on all ranks.
    gradients : ndarray of float32, shape (n,)
        Become the sums.
    receive : ndarray of float32, shape (n,)
        Receives the elements of the sums that this rank updates.
    size : int
        The count of ranks.
    senders : frozenset of int
        The ranks that send.
    decoded : Decoded
        The elements that each rank updates.
    divides : bool
        Whether the result is the sum divided by the count of senders.
    skip : callable
        Returns the `skip` of `ncclkv.compress.coding.Encode` of a launch.
    kernels : Kernels
        The arithmetic in the memory of the arrays.
    """

    codec: PowerSGD
    exchange: Callable[[], Exchange]
    gradients: Buffer
    receive: Buffer
    size: int
    senders: frozenset[int]
    decoded: Decoded
    divides: bool
    skip: Callable[[], Buffer | None] = lambda: None
    kernels: Kernels = field(default_factory=HostKernels)

    def steps(self, wire: Wire, apply: Apply | None) -> Steps:
        """Make the sums."""
        if self.decoded.shared:
            wire.share_result()
        exchange = self.exchange()
        for basis in exchange.bases:
            basis.launches += 1
        for array in exchange.whole:
            yield from self._sum(wire, array)
        if exchange.products is not None:
            yield from self._low_rank(wire, exchange.products)
        else:
            # Other ranks may read the last array, which is written below.
            yield from wire.read(self.gradients[:0], lambda reader, owner: None)
        if self.divides:
            for array in exchange.whole:
                self.kernels.divide(array, len(self.senders))
        lo, hi = self.decoded.parts[wire.rank]
        wire.copy(self.gradients[lo:hi], self.receive[lo:hi])
        if lo < hi and apply is not None:
            apply(lo, hi)

    def _low_rank(self, wire: Wire, products: Products) -> Steps:
        """Set the matrices to the products that stand for their sums, and short keys to theirs."""
        skip, factoring = self.skip(), products.factoring
        for basis in products.bases:
            basis.begin(self.codec)
        # Else sums of what an earlier launch has left would grow from launch to launch.
        for array in products.idle:
            self.kernels.fill(array, 0)
        if wire.rank in self.senders:
            factoring.project(skip)
            products.to_first()
        yield from self._sum(wire, products.first)
        factoring.project_back(skip)
        yield from self._sum(wire, products.second)
        factoring.finish(skip)
        if self.divides:
            # All at once, though P is not needed any more: there may be many short keys.
            self.kernels.divide(products.first, len(self.senders))
        products.from_first()

    def _sum(self, wire: Wire, array: Buffer) -> Steps:
        """Set an array to its sum over the ranks that send."""
        for chunk, made in sums_of_chunks(array, self.size, self.senders):
            yield from made.steps(wire, chunk)

    def sent(self, rank: int) -> int:
        """Return the bytes that other ranks read of a rank in the next launch."""
        return sum(
            made.sent(rank)
            for array in self._summed()
            for _, made in sums_of_chunks(array, self.size, self.senders)
        )

    def _summed(self) -> Iterator[Buffer]:
        """Yield the arrays that ranks sum in the next launch."""
        exchange = self.exchange()
        yield from exchange.whole
        if exchange.products is not None:
            yield from (exchange.products.first, exchange.products.second)
