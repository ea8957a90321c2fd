"""Lion in NumPy, with the operations of ``lion.h``."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ncclkv.kernels.base import Array, Arrays
from ncclkv.kernels.programs.gradient import clipped, decayed


def lion(
    weights: Array, gradients: Array, states: Arrays, scratch: Array, scalars: Sequence[float]
) -> None:
    """Update a chunk of weights in place; parameters as of `ncclkv.kernels.programs.Step`."""
    learning_rate, beta1, share1, beta2, share2, decay, *common = scalars
    change, other, direction = scratch
    (momenta,) = states
    gradients = clipped(gradients, scratch, *common)
    np.multiply(momenta, beta1, out=direction)
    np.add(direction, np.multiply(gradients, share1, out=other), out=direction)
    np.sign(direction, out=direction)
    np.multiply(momenta, beta2, out=momenta)
    np.add(momenta, np.multiply(gradients, share2, out=other), out=momenta)
    np.multiply(decayed(direction, weights, scratch, decay), learning_rate, out=change)
    np.subtract(weights, change, out=weights)
