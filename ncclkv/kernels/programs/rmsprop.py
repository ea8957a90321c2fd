"""RMSProp in NumPy, with the operations of ``rmsprop.h``."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ncclkv.kernels.base import Array, Arrays
from ncclkv.kernels.programs.gradient import decayed_and_clipped


def rmsprop(
    weights: Array, gradients: Array, states: Arrays, scratch: Array, scalars: Sequence[float]
) -> None:
    """Update a chunk of weights in place; parameters as of `ncclkv.kernels.programs.Step`."""
    learning_rate, gamma1, share, gamma2, epsilon, bound, *common = scalars
    change, other = scratch
    squares = states[0]
    gradients = decayed_and_clipped(gradients, weights, scratch, *common)
    np.multiply(squares, gamma1, out=squares)
    if len(states) == 1:
        np.multiply(np.multiply(gradients, gradients, out=other), share, out=other)
        np.add(squares, other, out=squares)
        np.sqrt(np.add(squares, epsilon, out=other), out=other)
        np.divide(gradients, other, out=change)
        np.multiply(change, learning_rate, out=change)
        np.subtract(weights, change, out=weights)
    else:
        _, mean, delta = states
        np.multiply(gradients, share, out=other)
        np.add(np.multiply(mean, gamma1, out=mean), other, out=mean)
        np.add(squares, np.multiply(other, gradients, out=other), out=squares)
        np.subtract(squares, np.multiply(mean, mean, out=other), out=other)
        # Rounding may make the variance of equal gradients negative.
        np.maximum(other, 0, out=other)
        np.sqrt(np.add(other, epsilon, out=other), out=other)
        np.divide(np.multiply(gradients, learning_rate, out=change), other, out=change)
        np.subtract(np.multiply(delta, gamma2, out=delta), change, out=delta)
        np.add(weights, delta, out=weights)
    if bound >= 0:
        np.clip(weights, -bound, bound, out=weights)
