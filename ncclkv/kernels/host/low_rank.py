"""Products of narrow matrices in a fixed order of operations; in C if the kernels in C are active.

Ranks must make equal bits, which a BLAS does not promise from one processor to another.  A narrow
matrix is given by its columns, each of them a row of an array, so that a column lies in one piece.
"""

from __future__ import annotations

import numpy as np

from ncclkv.kernels.base import Array
from ncclkv.kernels.host import compiled
from ncclkv.kernels.host.chunks import ranges
from ncclkv.kernels.host.measure import LANES

TILE = 16 * 1024
"""Elements of a tile of NumPy's."""

LEAST_SHARE = 1e-8
"""A row that keeps a smaller share of its norm depends on the rows before it."""


def orthonormalise(rows: Array) -> None:
    """Make rows orthonormal by Gram and Schmidt's method, in float64; each is rounded once.

    A row that depends on the rows before it becomes zero.  A part of it along these rows would else
    be counted twice, in the product of a matrix with the rows.  NaN and infinity make NaN.

    Parameters
    ----------
    rows : ndarray of float32, shape (k, n)

    Examples
    --------
    >>> rows = np.array([[3, 4], [1, 0]], np.float32)
    >>> orthonormalise(rows)
    >>> rows
    array([[ 0.6,  0.8],
           [ 0.8, -0.6]], dtype=float32)
    """
    if compiled.active and compiled.orthonormalise(rows, len(rows)):
        return
    with np.errstate(all="ignore"):
        work = rows.astype(np.float64)
        norms = [np.sqrt(_dot(row, row)) for row in work]
        for index, row in enumerate(work):
            norm = np.sqrt(_dot(row, row))
            # A comparison with NaN is false, so that NaN is seen in the result.
            if norm == 0 or norm < LEAST_SHARE * norms[index]:
                row[...] = 0
            else:
                row /= norm
            for later in work[index + 1 :]:
                later -= _dot(row, later) * row
        rows[...] = work


def _dot(a: Array, b: Array) -> np.float64:
    """Return the sum of products: element i is added to lane ``i % LANES``, then the lanes."""
    products = np.zeros((-(-a.size // LANES), LANES))
    np.multiply(a, b, out=products.reshape(-1)[: a.size])
    # Row after row: NumPy adds pairs alone within the last axis.
    sums = np.add.reduce(products, axis=0, initial=0.0)
    total: np.float64 = np.add.accumulate(sums)[-1]
    return total


def multiply(
    left: Array,
    right: Array,
    matrix: Array,
    residual: Array | None,
    senders: int,
    average: bool,
) -> None:
    """Set `matrix` to ``left.T @ right``, and `residual` to what this lacks of a sender's matrix.

    Parameters
    ----------
    left : ndarray of float32, shape (k, m)
    right : ndarray of float32, shape (k, n)
        Of the sum of all senders.
    matrix : ndarray of float32, shape (m, n)
        Of this sender; becomes the product, which stands for the sum of all.
    residual : ndarray of float32, shape (m, n), or None
        Becomes the matrix of this sender less an equal share of the product.
    senders : int
    average : bool
        Divide the product by the count of senders.

    Examples
    --------
    >>> matrix, residual = np.array([[2, 5]], np.float32), np.empty((1, 2), np.float32)
    >>> left, right = np.array([[2]], np.float32), np.array([[1, 3]], np.float32)
    >>> multiply(left, right, matrix, residual, senders=2, average=False)
    >>> matrix, residual
    (array([[2., 6.]], dtype=float32), array([[1., 2.]], dtype=float32))
    """
    if compiled.active and compiled.multiply(
        left, right, len(left), matrix, residual, senders, average
    ):
        return
    rows, columns = matrix.shape
    divisor = np.float32(senders)
    with np.errstate(all="ignore"):
        for part in ranges(rows, max(1, TILE // max(1, columns))):
            product = left[0, part, None] * right[0]
            for tall, wide in zip(left[1:, part], right[1:], strict=True):
                product += tall[:, None] * wide
            if residual is None and not average:
                matrix[part] = product
                continue
            shared = product / divisor
            if residual is not None:
                np.subtract(matrix[part], shared, out=residual[part])
            matrix[part] = shared if average else product
