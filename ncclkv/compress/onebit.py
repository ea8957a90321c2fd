"""MXNet's 1bit: each element sends 1 or -1, and keeps the rest."""

from __future__ import annotations

import numpy as np

from ncclkv.compress.quantiser import Quantiser
from ncclkv.kernels.base import Array


class OneBit(Quantiser):
    """Codes of 1 bit; the loop in C is ``quantise_1bit``.

    The threshold moves the decision alone: what is sent is 1 or -1, also for a gradient of 0.

    Parameters
    ----------
    threshold : float
    scope : str

    Examples
    --------
    >>> codec, residual = OneBit(threshold=0.0), np.zeros(3, np.float32)
    >>> payload, counts = np.empty(4, np.uint8), np.empty(3, np.uint16)
    >>> codec.encode(np.array([2, 0, -2], np.float32), residual, payload)
    0
    >>> codec.count_sum([payload], counts)
    >>> out = np.empty(3, np.float32)
    >>> codec.finish(counts, 1, out)
    >>> out, residual
    (array([ 1., -1., -1.], dtype=float32), array([ 1.,  1., -1.], dtype=float32))
    """

    name = "1bit"
    bits = 1
    levels = (0, 1)
    bound = 4.0
    step = 2.0

    def advice(self, root_mean_square: float) -> str:
        return (
            f"an element sends 1 or -1 a push, and these gradients have a root mean square of "
            f"{root_mean_square:.2g}; rescale the gradients to about 1, or use another type"
        )

    def quantise(self, sums: Array, bits: Array) -> None:
        up = np.greater(sums, self.threshold, out=bits[:, 0])
        sums -= np.where(up, np.float32(1), np.float32(-1))
