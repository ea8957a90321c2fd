"""`Factoring`: the arithmetic of matrices that are sent as products; `HostFactoring`, on a host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from ncclkv.compress.powersgd import PowerSGD
from ncclkv.kernels.base import Array


class Factors(NamedTuple):
    """A matrix of gradients, and the narrow ones of its sums, which arrays hold by their columns.

    Attributes
    ----------
    matrix : array of float32, shape (m, n)
    residual : array of float32, shape (m, n), or None
        None if nothing is kept, or on a rank that sends nothing.
    start : array of float32, shape (k, n)
        The Q with which the sum begins; becomes the sum of all Q.
    spare : array of float32, shape (k, n)
        As for `PowerSGD.renew`.
    p : array of float32, shape (k, m)
        That of this rank, and then the sum of all P.
    direction : array of float32, shape (k, m)
        Becomes the sum of all P, made orthonormal.
    q : array of float32, shape (k, n)
        That of this rank, and then the sum of all Q.
    """

    matrix: Array
    residual: Array | None
    start: Array
    spare: Array
    p: Array
    direction: Array
    q: Array


class Factoring(Protocol):
    """The arithmetic of the matrices of a launch, in three parts, between which ranks sum.

    The parameter `skip` of each part is that of `ncclkv.compress.coding.Encode`.
    """

    def project(self, skip: Array | None) -> None:
        """Add residuals to the matrices, and set each P; ranks then sum P."""

    def project_back(self, skip: Array | None) -> None:
        """Set each Q by the sum of all P, which stays as it is; ranks then sum Q."""

    def finish(self, skip: Array | None) -> None:
        """Set the matrices to the products that stand for their sums, and residuals to the rest."""


class HostFactoring:
    """`Factoring` on NumPy arrays.

    Parameters
    ----------
    codec : PowerSGD
    factors : sequence of Factors
    senders : int
    average : bool
        Whether the sums are divided by the count of senders.
    """

    def __init__(
        self, codec: PowerSGD, factors: Sequence[Factors], senders: int, average: bool
    ) -> None:
        self._codec, self._factors = codec, factors
        self._senders, self._average = senders, average

    def project(self, skip: Array | None) -> None:
        for each in self._factors:
            self._codec.renew(each.start, each.spare)
            self._codec.project(each.matrix, each.residual, each.start, each.p)

    def project_back(self, skip: Array | None) -> None:
        for each in self._factors:
            # A copy: other ranks may read the sum until the next read.
            each.direction[...] = each.p
            self._codec.project_back(each.matrix, each.direction, each.q)

    def finish(self, skip: Array | None) -> None:
        senders, average = self._senders, self._average
        for matrix, residual, start, _, _, direction, q in self._factors:
            self._codec.finish(matrix, direction, q, residual, senders, average)
            start[...] = q
