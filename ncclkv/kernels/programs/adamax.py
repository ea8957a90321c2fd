"""AdaMax in NumPy, with the operations of ``adamax.h``."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ncclkv.kernels.base import Array, Arrays
from ncclkv.kernels.programs.gradient import decayed_and_clipped


def adamax(
    weights: Array, gradients: Array, states: Arrays, scratch: Array, scalars: Sequence[float]
) -> None:
    """Update a chunk of weights in place; parameters as of `ncclkv.kernels.programs.Step`."""
    learning_rate, beta1, share, beta2, *common = scalars
    change, other = scratch
    mean, maximum = states
    gradients = decayed_and_clipped(gradients, weights, scratch, *common)
    np.multiply(mean, beta1, out=mean)
    np.add(mean, np.multiply(gradients, share, out=other), out=mean)
    np.multiply(maximum, beta2, out=maximum)
    np.maximum(maximum, np.abs(gradients, out=other), out=maximum)
    np.divide(np.multiply(mean, learning_rate, out=change), maximum, out=change)
    np.copyto(change, 0, where=maximum == 0)
    np.subtract(weights, change, out=weights)
