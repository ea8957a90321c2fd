"""Follow the regularized leader in NumPy, with the operations of ``ftrl.h``."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ncclkv.kernels.base import Array, Arrays
from ncclkv.kernels.programs.gradient import clipped


def ftrl(
    weights: Array, gradients: Array, states: Arrays, scratch: Array, scalars: Sequence[float]
) -> None:
    """Update a chunk of weights in place; parameters as of `ncclkv.kernels.programs.Step`.

    A learning rate of 0 changes nothing.
    """
    learning_rate, lamda1, beta, decay, *common = scalars
    # As rounded to the dtype, so that no division is by 0.
    if weights.dtype.type(learning_rate) == 0:
        return
    _, other, divisor = scratch
    z, n = states
    gradients = clipped(gradients, scratch, *common)
    np.sqrt(n, out=other)
    np.add(n, np.multiply(gradients, gradients, out=divisor), out=n)
    np.sqrt(n, out=divisor)
    np.multiply(np.subtract(divisor, other, out=other), weights, out=other)
    np.subtract(gradients, np.divide(other, learning_rate, out=other), out=other)
    np.add(z, other, out=z)
    np.divide(np.add(divisor, beta, out=divisor), learning_rate, out=divisor)
    np.add(divisor, decay, out=divisor)
    np.subtract(np.copysign(lamda1, z, out=other), z, out=other)
    np.divide(other, divisor, out=weights)
    np.copyto(weights, 0, where=np.abs(z, out=other) <= lamda1)
