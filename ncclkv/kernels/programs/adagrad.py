"""AdaGrad in NumPy, with the operations of ``adagrad.h``."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ncclkv.kernels.base import Array, Arrays
from ncclkv.kernels.programs.gradient import clipped, decayed


def adagrad(
    weights: Array, gradients: Array, states: Arrays, scratch: Array, scalars: Sequence[float]
) -> None:
    """Update a chunk of weights in place; parameters as of `ncclkv.kernels.programs.Step`."""
    learning_rate, epsilon, decay, *common = scalars
    change, other = scratch
    (history,) = states
    gradients = clipped(gradients, scratch, *common)
    np.add(history, np.multiply(gradients, gradients, out=other), out=history)
    np.sqrt(np.add(history, epsilon, out=other), out=other)
    np.divide(gradients, other, out=change)
    np.multiply(decayed(change, weights, scratch, decay), learning_rate, out=change)
    np.subtract(weights, change, out=weights)
