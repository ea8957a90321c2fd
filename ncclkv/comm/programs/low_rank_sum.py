"""`LowRankSum`: a sum of matrices, as the product of two narrow ones that ranks exchange.

Ranks sum the matrices P, and with them all keys that are too short to be compressed; then they sum
the matrices Q.  A rank needs the whole product to know what it has not sent.  So each rank makes
the sums of all keys, where its gradients are, also if it receives a part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from ncclkv.comm.programs.decoded import Decoded
from ncclkv.comm.programs.ordered_sum import OrderedSum
from ncclkv.comm.transport import Steps
from ncclkv.comm.types import Apply, Buffer
from ncclkv.comm.wire import Wire
from ncclkv.compress.basis import Basis
from ncclkv.compress.powersgd import PowerSGD


class Factors(NamedTuple):
    """A matrix of gradients, and the two narrow ones of its launch.

    Attributes
    ----------
    matrix : ndarray of float32, shape (m, n)
    residual : ndarray of float32, shape (m, n), or None
    basis : Basis
    p : ndarray of float32, shape (k, m)
    q : ndarray of float32, shape (k, n)
    """

    matrix: Buffer
    residual: Buffer | None
    basis: Basis
    p: Buffer
    q: Buffer


class Exchange(NamedTuple):
    """The arrays of a launch: a key is a matrix, a short key, or in a whole range.

    Attributes
    ----------
    bases : sequence of Basis
        Those of all keys that are compressed now or later.
    whole : sequence of ndarray
        Ranges of gradients that are not compressed in this launch.
    short : sequence of (ndarray, ndarray)
        The gradients of keys that are never compressed, and their places in `first`.
    factors : sequence of Factors
        Their P are in `first`, their Q in `second`.
    first, second : ndarray of float32
        What ranks sum if there are any factors.
    """

    bases: Sequence[Basis]
    whole: Sequence[Buffer]
    short: Sequence[tuple[Buffer, Buffer]]
    factors: Sequence[Factors]
    first: Buffer
    second: Buffer


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
    """

    codec: PowerSGD
    exchange: Callable[[], Exchange]
    gradients: Buffer
    receive: Buffer
    size: int
    senders: frozenset[int]
    decoded: Decoded
    divides: bool

    def steps(self, wire: Wire, apply: Apply | None) -> Steps:
        """Make the sums."""
        if self.decoded.shared:
            wire.share_result()
        exchange = self.exchange()
        for basis in exchange.bases:
            basis.launches += 1
        for array in exchange.whole:
            yield from self._sum(array).steps(wire, array)
        if exchange.factors:
            yield from self._low_rank(wire, exchange)
        else:
            # Other ranks may read the last array, which is written below.
            yield from wire.read(self.gradients[:0], lambda reader, owner: None)
        if self.divides:
            for array in (*exchange.whole, *(part for part, _ in exchange.short)):
                array /= np.float32(len(self.senders))
        lo, hi = self.decoded.parts[wire.rank]
        wire.copy(self.gradients[lo:hi], self.receive[lo:hi])
        if lo < hi and apply is not None:
            apply(lo, hi)

    def _low_rank(self, wire: Wire, exchange: Exchange) -> Steps:
        """Set the matrices to the products that stand for their sums, and short keys to theirs."""
        codec, sends = self.codec, wire.rank in self.senders
        _, _, short, factors, first, second = exchange
        if sends:
            for matrix, residual, basis, p, _ in factors:
                codec.project(matrix, residual, basis.first(codec), p)
            for part, place in short:
                place[...] = part
        yield from self._sum(first).steps(wire, first)
        # Copies: other ranks may read the sums until the next read.
        summed = [each.p.copy() for each in factors]
        for (matrix, _, _, _, q), p in zip(factors, summed, strict=True):
            codec.project_back(matrix, p, q)
        yield from self._sum(second).steps(wire, second)
        finish = partial(codec.finish, senders=len(self.senders), average=self.divides)
        for (matrix, residual, basis, _, q), p in zip(factors, summed, strict=True):
            finish(matrix, p, q, residual if sends else None)
            basis.keep(codec, q)
        for part, place in short:
            part[...] = place

    def _sum(self, array: Buffer) -> OrderedSum:
        """Return the sum of an array over the ranks that send."""
        return OrderedSum(array.size, array.itemsize, self.size, self.senders)

    def sent(self, rank: int) -> int:
        """Return the bytes that other ranks read of a rank in the next launch."""
        return sum(self._sum(array).sent(rank) for array in self._summed())

    def _summed(self) -> Iterator[Buffer]:
        """Yield the arrays that ranks sum in the next launch."""
        exchange = self.exchange()
        yield from exchange.whole
        if exchange.factors:
            yield from (exchange.first, exchange.second)
