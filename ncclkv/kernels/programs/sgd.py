"""Stochastic gradient descent in NumPy, with the operations of ``sgd.h``."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ncclkv.kernels.base import Array, Arrays
from ncclkv.kernels.programs.gradient import clipped_and_decayed


def sgd(
    weights: Array, gradients: Array, states: Arrays, scratch: Array, scalars: Sequence[float]
) -> None:
    """Update a chunk of weights in place; parameters as of `ncclkv.kernels.programs.Step`."""
    learning_rate, momentum, *common = scalars
    change = scratch[0]
    gradients = clipped_and_decayed(gradients, weights, scratch, *common)
    np.multiply(gradients, learning_rate, out=change)
    if not states:
        np.subtract(weights, change, out=weights)
        return
    (momenta,) = states
    np.multiply(momenta, momentum, out=momenta)
    np.subtract(momenta, change, out=momenta)
    np.add(weights, momenta, out=weights)
