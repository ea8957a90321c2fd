"""LARS in NumPy, with the operations of ``lars.h``."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ncclkv.kernels.base import Array, Arrays
from ncclkv.kernels.programs.sgd import sgd

LEAST = 2.0**-150
"""Sum of squares that is 0 in float32, in which MXNet adds them.

The rate over such a norm may be infinite in float32.
"""


def lars(
    weights: Array, gradients: Array, states: Arrays, scratch: Array, scalars: Sequence[float]
) -> None:
    """Update a chunk of weights in place; parameters as of `ncclkv.kernels.programs.Step`.

    The arithmetic is that of ``sgd``, with the learning rate of the key.
    """
    learning_rate, momentum, _, _, *common = scalars
    sgd(weights, gradients, states, scratch, (learning_rate, momentum, *common))


def measure(
    weights: Array, gradients: Array, states: Arrays, scratch: Array, scalars: Sequence[float]
) -> Arrays:
    """Return the weights and the gradients; as of `ncclkv.kernels.programs.Measure`."""
    return weights, gradients


def trust(rows: Array, sums: Array) -> Array:
    """Return the factor of each key's learning rate; as of `ncclkv.kernels.programs.Trust`.

    ::

        eta * |weights| / (|gradients| + weight_decay * |weights| + epsilon)

    The factor is 1 for a negative eta, and if a norm is 0 or the sum of the squares of the
    gradients is at most `LEAST`.
    """
    eta, epsilon, decay, rescale = rows[:, 2], rows[:, 3], rows[:, 4], rows[:, 5]
    weight, gradient = np.sqrt(sums[:, 0]), np.sqrt(sums[:, 1]) * rescale
    adapts = (eta >= 0) & (weight > 0) & (gradient > 0) & (sums[:, 1] > LEAST)
    found = eta * weight / (gradient + decay * weight + epsilon)
    return np.where(adapts, found, 1.0)
