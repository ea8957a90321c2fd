"""Steps by the sign in NumPy, with the operations of ``signum.h``."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ncclkv.kernels.base import Array, Arrays
from ncclkv.kernels.programs.gradient import clipped


def signum(
    weights: Array, gradients: Array, states: Arrays, scratch: Array, scalars: Sequence[float]
) -> None:
    """Update a chunk of weights in place; parameters as of `ncclkv.kernels.programs.Step`."""
    learning_rate, momentum, share, decay, keep, weight_decay, *common = scalars
    change, other = scratch
    if states:
        (momenta,) = states
        gradients = clipped(gradients, scratch, *common)
        np.multiply(momenta, momentum, out=momenta)
        if weight_decay:
            np.subtract(momenta, np.multiply(weights, decay, out=other), out=momenta)
        np.subtract(momenta, np.multiply(gradients, share, out=change), out=momenta)
        gradients, learning_rate = momenta, -learning_rate
    np.multiply(np.sign(gradients, out=change), learning_rate, out=change)
    np.multiply(weights, keep, out=weights)
    np.subtract(weights, change, out=weights)
