"""Follow the moving leader in NumPy, with the operations of ``ftml.h``."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ncclkv.kernels.base import Array, Arrays
from ncclkv.kernels.programs.gradient import decayed_and_clipped


def ftml(
    weights: Array, gradients: Array, states: Arrays, scratch: Array, scalars: Sequence[float]
) -> None:
    """Update a chunk of weights in place; parameters as of `ncclkv.kernels.programs.Step`.

    A learning rate of 0 changes nothing.
    """
    rate, beta1, share1, beta2, share2, epsilon, bias1, bias2, *common = scalars
    real = weights.dtype.type
    # As rounded to the dtype, so that no division is by 0.
    if real(rate) == 0:
        return
    change, other = scratch
    d, v, z = states
    gradients = decayed_and_clipped(gradients, weights, scratch, *common)
    np.multiply(v, beta2, out=v)
    np.multiply(gradients, gradients, out=other)
    np.add(v, np.multiply(other, share2, out=other), out=v)
    np.multiply(z, beta1, out=z)
    np.add(z, np.multiply(gradients, share1, out=change), out=z)
    np.multiply(d, beta1, out=change)
    np.sqrt(np.divide(v, bias2, out=d), out=d)
    np.multiply(np.add(d, epsilon, out=d), real(bias1) / real(rate), out=d)
    np.multiply(np.subtract(d, change, out=change), weights, out=change)
    np.subtract(z, change, out=z)
    np.divide(np.negative(z, out=change), d, out=weights)
