"""Nesterov's accelerated gradient in NumPy, with the operations of ``nag.h``."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ncclkv.kernels.base import Array, Arrays
from ncclkv.kernels.programs.gradient import clipped, decayed


def nag(
    weights: Array, gradients: Array, states: Arrays, scratch: Array, scalars: Sequence[float]
) -> None:
    """Update a chunk of weights in place; parameters as of `ncclkv.kernels.programs.Step`."""
    learning_rate, momentum, ahead, decay, *common = scalars
    change, free = scratch[1], scratch[1:]
    gradients = clipped(gradients, scratch, *common)
    np.multiply(decayed(gradients, weights, free, decay), learning_rate, out=change)
    if not states:
        np.subtract(weights, change, out=weights)
        return
    (momenta,) = states
    np.multiply(momenta, momentum, out=momenta)
    np.subtract(weights, momenta, out=weights)
    np.multiply(np.subtract(momenta, change, out=change), ahead, out=change)
    np.add(weights, change, out=weights)
    np.multiply(decayed(gradients, weights, free, decay), learning_rate, out=change)
    np.subtract(momenta, change, out=momenta)
