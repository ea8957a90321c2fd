"""powersgd: a matrix of gradients as the product of two narrow ones (Vogels et al., 2019)."""

from __future__ import annotations

import math
import sys
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ncclkv.compress.declared import SCOPE, Parameter, above_0, at_least_1, count, flag
from ncclkv.kernels.base import Array
from ncclkv.kernels.host.low_rank import multiply, orthonormalise


class PowerSGD:
    """The product of two matrices of few columns, in place of a matrix of gradients.

    Ranks sum P, the matrix times Q, and then Q, the transposed matrix times P.  The product of P
    and of the transposed Q stands for the sum.  Arrays hold P and Q by their columns.  Parameters
    have the names of ``torch.distributed``'s ``PowerSGDState``.

    NaN and infinity spread over a whole matrix, and stay in its residual.

    Parameters
    ----------
    matrix_approximation_rank : int
        Count of columns of the two matrices.
    start_powerSGD_iter : int
        Count of the first sums of a key that are not compressed.
    min_compression_rate : float
        A key is compressed only if it then has fewer elements by more than this factor.
    use_error_feedback : bool
        Keep what is not sent in a residual, and add it to the next gradients.
    warm_start : bool
        Begin with the last matrix Q of a key, and not with a new one.
    random_seed : int
    scope : str
        The sender: ``"rank"``, or the ranks of a node together (``"node"``).

    Examples
    --------
    >>> codec = PowerSGD(matrix_approximation_rank=2)
    >>> codec.pays((64, 32, 3, 3), 4), codec.pays((64,), 4)
    (True, False)
    >>> import numpy as np
    >>> matrix = np.outer(np.arange(3), np.ones(2)).astype(np.float32)
    >>> residual, p = np.zeros_like(matrix), np.empty((1, 3), np.float32)
    >>> codec = PowerSGD(matrix_approximation_rank=1)
    >>> q = codec.basis("weight", matrix.shape)
    >>> codec.renew(q, spare=q)
    >>> codec.project(matrix, residual, q, p)
    >>> codec.project_back(matrix, p, q)
    >>> codec.finish(matrix, p, q, residual, senders=1)
    >>> np.allclose(matrix, [[0, 0], [1, 1], [2, 2]], atol=1e-6)
    True
    """

    name = "powersgd"
    declared = (
        Parameter("matrix_approximation_rank", 1, at_least_1, "rank"),
        Parameter("start_powerSGD_iter", 10, count),
        Parameter("min_compression_rate", 2.0, above_0),
        Parameter("use_error_feedback", True, flag),
        Parameter("warm_start", True, flag),
        Parameter("random_seed", 0, count),
        SCOPE,
    )

    dtypes = ("float32",)
    ops = ("sum", "avg")
    most_senders = sys.maxsize

    def __init__(self, **given: Any) -> None:
        self.parameters: Mapping[str, Any] = {
            "type": self.name,
            **{each.name: given.get(each.name, each.default) for each in self.declared},
        }
        self.rank: int = self.parameters["matrix_approximation_rank"]
        self.keeps_residual: bool = self.parameters["use_error_feedback"]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.parameters})"

    def pays(self, shape: Sequence[int], senders: int) -> bool:
        """Return whether P and Q have fewer elements than the key by `min_compression_rate`."""
        rows, columns = matrix_shape(shape)
        rate = self.parameters["min_compression_rate"]
        return bool(rows * columns > rate * self.rank * (rows + columns))

    def narrow_shapes(self, shape: Sequence[int]) -> tuple[tuple[int, int], tuple[int, int]]:
        """Return the shapes of P and Q of a key, which has a shape that is compressed.

        Examples
        --------
        >>> PowerSGD(matrix_approximation_rank=2).narrow_shapes((64, 32, 3, 3))
        ((2, 64), (2, 288))
        """
        rows, columns = matrix_shape(shape)
        rank = min(self.rank, rows, columns)
        return (rank, rows), (rank, columns)

    def basis(self, key: int | str, shape: Sequence[int], launch: int = 0) -> Array:
        """Return a first Q of a key, which is the same on all ranks.

        Parameters
        ----------
        key : int or str
        shape : sequence of int
        launch : int
            Index of the sum of the key, for another Q at each sum without `warm_start`.
        """
        seeds = (self.parameters["random_seed"], zlib.crc32(str(key).encode("utf-8", "replace")))
        rng = np.random.default_rng((*seeds, launch) if launch else seeds)
        return rng.standard_normal(self.narrow_shapes(shape)[1], np.float32)

    def renew(self, q: Array, spare: Array) -> None:
        """Make Q orthonormal, once rows are replaced with which no gradient could be sent.

        Such a row is 0, as after gradients of 0, or has an element that is not finite.  The row of
        `spare` takes its place, which is a first Q of the key.
        """
        lost = ~(np.isfinite(q).all(axis=1) & q.any(axis=1))
        if lost.any():
            q[lost] = spare[lost]
        orthonormalise(q)

    def project(self, matrix: Array, residual: Array | None, q: Array, p: Array) -> None:
        """Add the residual to a matrix, and set P to the matrix times Q; ranks then sum P.

        Parameters
        ----------
        matrix : ndarray of float32, shape (m, n)
            Gradients of a key, as `matrix_shape`; they are changed.
        residual : ndarray of float32, shape (m, n), or None
        q : ndarray of float32, shape (k, n)
            As `renew` has left it.
        p : ndarray of float32, shape (k, m)
        """
        with np.errstate(all="ignore"):
            if residual is not None:
                matrix += residual
            np.matmul(q, matrix.T, out=p)

    def project_back(self, matrix: Array, p: Array, q: Array) -> None:
        """Make the sum of all P orthonormal, and set Q by it; ranks then sum Q."""
        orthonormalise(p)
        with np.errstate(all="ignore"):
            np.matmul(p, matrix, out=q)

    def finish(
        self,
        matrix: Array,
        p: Array,
        q: Array,
        residual: Array | None,
        senders: int,
        average: bool = False,
    ) -> None:
        """Set `matrix` to the sum that P and Q stand for, with the same bits on all ranks.

        Parameters
        ----------
        matrix : ndarray of float32, shape (m, n)
            As `project` has left it.
        p, q : ndarray of float32
            As `project_back` has left P, and the sum of all Q.
        residual : ndarray of float32, shape (m, n), or None
            Becomes this sender's matrix less its share of the sum.
        senders : int
        average : bool
            Divide the sum by the count of senders.
        """
        multiply(p, q, matrix, residual, senders, average)


def matrix_shape(shape: Sequence[int]) -> tuple[int, int]:
    """Return the rows and columns of the matrix of a key: its first dimension, and all others.

    Examples
    --------
    >>> matrix_shape((64, 32, 3, 3)), matrix_shape((5,)), matrix_shape(())
    ((64, 288), (5, 1), (1, 1))
    """
    return (shape[0], math.prod(shape[1:])) if shape else (1, 1)
