"""Adam with Nesterov's momentum in NumPy, with the operations of ``nadam.h``."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ncclkv.kernels.base import Array, Arrays
from ncclkv.kernels.programs.gradient import decayed_and_clipped


def nadam(
    weights: Array, gradients: Array, states: Arrays, scratch: Array, scalars: Sequence[float]
) -> None:
    """Update a chunk of weights in place; parameters as of `ncclkv.kernels.programs.Step`."""
    learning_rate, beta1, share1, beta2, share2, epsilon, now, ahead, correction, *common = scalars
    change, other = scratch
    mean, variance = states
    gradients = decayed_and_clipped(gradients, weights, scratch, *common)
    np.multiply(mean, beta1, out=mean)
    np.add(mean, np.multiply(gradients, share1, out=other), out=mean)
    np.multiply(variance, beta2, out=variance)
    np.multiply(gradients, share2, out=other)
    np.add(variance, np.multiply(other, gradients, out=other), out=variance)
    np.multiply(gradients, now, out=change)
    np.add(change, np.multiply(mean, ahead, out=other), out=change)
    np.sqrt(np.multiply(variance, correction, out=other), out=other)
    np.add(other, epsilon, out=other)
    np.divide(np.multiply(change, learning_rate, out=change), other, out=change)
    np.subtract(weights, change, out=weights)
