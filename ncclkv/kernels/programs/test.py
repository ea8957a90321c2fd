"""Addition of the rescaled gradient in NumPy, with the operations of ``test.h``."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ncclkv.kernels.base import Array, Arrays


def test(
    weights: Array, gradients: Array, states: Arrays, scratch: Array, scalars: Sequence[float]
) -> None:
    """Update a chunk of weights in place; parameters as of `ncclkv.kernels.programs.Step`."""
    _, rescale, _ = scalars
    (copies,) = states
    np.add(weights, np.multiply(gradients, rescale, out=scratch[0]), out=weights)
    np.copyto(copies, weights)
