"""Stochastic gradient descent in NumPy, with the operations of ``sgd.h``."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ncclkv.kernels.base import Array, Arrays


def sgd(
    weights: Array, gradients: Array, states: Arrays, scratch: Array, scalars: Sequence[float]
) -> None:
    """Update a chunk of weights in place; parameters as of `ncclkv.kernels.programs.Step`.

    ::

        g = clamp(rescale * gradient, -clip, clip) + weight_decay * weight
        without a state:  weight -= learning_rate * g
        with a state:     m = momentum * m - learning_rate * g;  weight += m
    """
    learning_rate, momentum, weight_decay, rescale, clip = scalars
    change, decay = scratch
    # A factor of 1 and a decay of 0 are skipped: neither changes a bit of a finite number.
    if rescale != 1:
        gradients = np.multiply(gradients, rescale, out=change)
    if clip >= 0:
        gradients = np.clip(gradients, -clip, clip, out=change)
    if weight_decay:
        np.multiply(weights, weight_decay, out=decay)
        gradients = np.add(gradients, decay, out=change)
    np.multiply(gradients, learning_rate, out=change)
    if not states:
        np.subtract(weights, change, out=weights)
        return
    (momenta,) = states
    np.multiply(momenta, momentum, out=momenta)
    np.subtract(momenta, change, out=momenta)
    np.add(weights, momenta, out=weights)
