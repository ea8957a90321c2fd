"""powersgd: a matrix of gradients as the product of two narrow ones (Vogels et al., 2019)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ncclkv.compress.declared import SCOPE, Parameter, above_0, at_least_1, count, flag


class PowerSGD:
    """The product of two matrices of few columns, in place of a matrix of gradients.

    Parameters have the names of ``torch.distributed``'s ``PowerSGDState``.

    Parameters
    ----------
    matrix_approximation_rank : int
        Number of columns of the two matrices.
    start_powerSGD_iter : int
        Number of the first sums of a key that are not compressed.
    min_compression_rate : float
        A key is compressed only if it then has fewer numbers by more than this factor.
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
    >>> codec.compresses((64, 32, 3, 3)), codec.compresses((64,))
    (True, False)
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

    def __init__(self, **given: Any) -> None:
        self.parameters: Mapping[str, Any] = {
            "type": self.name,
            **{each.name: given.get(each.name, each.default) for each in self.declared},
        }
        self.rank: int = self.parameters["matrix_approximation_rank"]
        self.keeps_residual: bool = self.parameters["use_error_feedback"]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.parameters})"

    def compresses(self, shape: Sequence[int]) -> bool:
        """Return whether a key of this shape is compressed; else its sums are those of float32."""
        rows, columns = matrix_shape(shape)
        rate = self.parameters["min_compression_rate"]
        return bool(rows * columns > rate * self.rank * (rows + columns))


def matrix_shape(shape: Sequence[int]) -> tuple[int, int]:
    """Return the rows and columns of the matrix of a key: its first dimension, and the others.

    Examples
    --------
    >>> matrix_shape((64, 32, 3, 3)), matrix_shape((5,)), matrix_shape(())
    ((64, 288), (5, 1), (1, 1))
    """
    return (shape[0], math.prod(shape[1:])) if shape else (1, 1)
