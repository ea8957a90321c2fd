"""AdaDelta in NumPy, with the operations of ``adadelta.h``."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ncclkv.kernels.base import Array, Arrays
from ncclkv.kernels.programs.gradient import clipped, decayed


def adadelta(
    weights: Array, gradients: Array, states: Arrays, scratch: Array, scalars: Sequence[float]
) -> None:
    """Update a chunk of weights in place; parameters as of `ncclkv.kernels.programs.Step`."""
    rho, share, epsilon, decay, *common = scalars
    change, other, root = scratch
    squares, deltas = states
    gradients = clipped(gradients, scratch, *common)
    np.multiply(squares, rho, out=squares)
    np.multiply(gradients, share, out=other)
    np.add(squares, np.multiply(other, gradients, out=other), out=squares)
    np.sqrt(np.add(squares, epsilon, out=other), out=other)
    np.sqrt(np.add(deltas, epsilon, out=root), out=root)
    np.multiply(np.divide(root, other, out=other), gradients, out=change)
    np.multiply(deltas, rho, out=deltas)
    np.multiply(change, share, out=other)
    np.add(deltas, np.multiply(other, change, out=other), out=deltas)
    np.subtract(weights, decayed(change, weights, scratch, decay), out=weights)
