"""MXNet's 2bit: each element sends the threshold, its negative or 0, and keeps the rest."""

from __future__ import annotations

import numpy as np

from ncclkv.compress.declared import SCOPE, Parameter, above_0
from ncclkv.compress.quantiser import Quantiser
from ncclkv.kernels.base import Array


class TwoBit(Quantiser):
    """Codes of 2 bits; the loop in C is ``quantise_2bit``.

    An element sends at most one threshold a push: larger gradients pile up in its residual.

    Parameters
    ----------
    threshold : float
        Above 0.
    scope : str

    Examples
    --------
    >>> codec, residual = TwoBit(threshold=0.5), np.zeros(5, np.float32)
    >>> payload, counts = np.empty(4, np.uint8), np.empty(5, np.uint16)
    >>> codec.encode(np.array([0.6, -0.6, 0.3, -0.3, 2], np.float32), residual, payload)
    1
    >>> codec.count_sum([payload], counts)
    >>> out = np.empty(5, np.float32)
    >>> codec.finish(counts, 1, out)
    >>> out
    array([ 0.5, -0.5,  0. ,  0. ,  0.5], dtype=float32)
    """

    name = "2bit"
    declared = (Parameter("threshold", 0.5, above_0), SCOPE)
    bits = 2
    # Codes 00 and 01 send nothing, 10 the negative threshold, 11 the threshold.
    levels = (1, 1, 0, 2)

    def __init__(self, threshold: float = 0.5, scope: str = "rank") -> None:
        super().__init__(threshold, scope)
        self.bound = self.step = float(self.threshold)

    def advice(self, root_mean_square: float) -> str:
        # Digits trained as well as without compression from four times the root mean square on.
        threshold = max(4 * root_mean_square, 2 * self.bound)
        return (
            f"an element sends at most {self.bound:g} a push, and these gradients have a root "
            f"mean square of {root_mean_square:.2g}; use a threshold of about {threshold:.2g}, "
            f"rescale the gradients, or use another type"
        )

    def quantise(self, sums: Array, bits: Array) -> None:
        threshold, up = self.threshold, bits[:, 1]
        np.greater_equal(sums, threshold, out=up)
        down = sums <= -threshold
        np.logical_or(up, down, out=bits[:, 0])
        np.subtract(sums, threshold, out=sums, where=up)
        np.add(sums, threshold, out=sums, where=down)
