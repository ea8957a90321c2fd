"""LAMB in NumPy, with the operations of ``lamb.h``."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ncclkv.kernels.base import Array, Arrays
from ncclkv.kernels.programs.gradient import clipped, decayed


def lamb(
    weights: Array, gradients: Array, states: Arrays, scratch: Array, scalars: Sequence[float]
) -> None:
    """Update a chunk of weights in place; parameters as of `ncclkv.kernels.programs.Step`.

    The states are those that `measure` has made; the gradients are not read::

        weight -= learning_rate * direction
    """
    change = _direction(weights, states, scratch, scalars)
    np.multiply(change, scalars[0], out=change)
    np.subtract(weights, change, out=weights)


def measure(
    weights: Array, gradients: Array, states: Arrays, scratch: Array, scalars: Sequence[float]
) -> Arrays:
    """Update the states; return weights and directions, as of `ncclkv.kernels.programs.Measure`."""
    beta1, share1, beta2, share2 = scalars[1:5]
    mean, variance = states
    gradients = clipped(gradients, scratch, *scalars[11:])
    other = scratch[1]
    np.multiply(mean, beta1, out=mean)
    np.add(mean, np.multiply(gradients, share1, out=other), out=mean)
    np.multiply(variance, beta2, out=variance)
    np.multiply(gradients, share2, out=other)
    np.add(variance, np.multiply(other, gradients, out=other), out=variance)
    return weights, _direction(weights, states, scratch, scalars)


def _direction(weights: Array, states: Arrays, scratch: Array, scalars: Sequence[float]) -> Array:
    """Return the directions, in the first row of `scratch`."""
    epsilon, corrected, root = scalars[5:8]
    change, other = scratch[0], scratch[1]
    mean, variance = states
    np.multiply(np.sqrt(variance, out=other), root, out=other)
    np.add(other, epsilon, out=other)
    np.divide(np.multiply(mean, corrected, out=change), other, out=change)
    if not change.dtype.type(epsilon):  # as the arithmetic rounds it
        np.copyto(change, 0, where=mean == 0)
    return decayed(change, weights, scratch, scalars[10])


def trust(rows: Array, sums: Array) -> Array:
    """Return the factor of each key's learning rate; as of `ncclkv.kernels.programs.Trust`.

    The factor is the norm of the weights, within its bounds, over the norm of the directions.  The
    factor is 1 if either norm is 0.
    """
    least, most = rows[:, 8], rows[:, 9]
    weight, direction = np.sqrt(sums[:, 0]), np.sqrt(sums[:, 1])
    weight = np.where((least >= 0) & (weight < least), least, weight)
    weight = np.where((most >= 0) & (weight > most), most, weight)
    found: Array = np.where((weight == 0) | (direction == 0), 1.0, weight / direction)
    return found
