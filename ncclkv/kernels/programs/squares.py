"""The norm of the gradients alone in NumPy, with the operations of ``squares.h``."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ncclkv.kernels.base import Array, Arrays


def squares(
    weights: Array, gradients: Array, states: Arrays, scratch: Array, scalars: Sequence[float]
) -> None:
    """Leave the weights as they are; parameters as of `ncclkv.kernels.programs.Step`."""


def measure(
    weights: Array, gradients: Array, states: Arrays, scratch: Array, scalars: Sequence[float]
) -> Arrays:
    """Return the gradients; as of `ncclkv.kernels.programs.Measure`."""
    return (gradients,)


def trust(rows: Array, sums: Array) -> Array:
    """Return 1 for each key; as of `ncclkv.kernels.programs.Trust`."""
    return np.ones(len(rows))
