"""The gradient as programs read it, in NumPy, with the operations of ``gradient.h``.

`scratch` has two rows or more.  Its first row may be the gradients; it receives the result.
"""

from __future__ import annotations

import numpy as np

from ncclkv.kernels.base import Array

COMMON = ("weight_decay", "rescale", "clip")
"""Names of the last scalars of every row."""


def clipped(gradients: Array, scratch: Array, rescale: float, clip: float) -> Array:
    """Return ``clamp(rescale * gradients, -clip, clip)``; a negative bound clamps nothing."""
    return _clamped(_rescaled(gradients, scratch, rescale), scratch, clip)


def decayed(x: Array, weights: Array, scratch: Array, decay: float) -> Array:
    """Return ``x + decay * weights``."""
    if decay:
        np.multiply(weights, decay, out=scratch[1])
        x = np.add(x, scratch[1], out=scratch[0])
    return x


def clipped_and_decayed(
    gradients: Array, weights: Array, scratch: Array, decay: float, rescale: float, clip: float
) -> Array:
    """Return ``clamp(rescale * gradients, -clip, clip) + decay * weights``."""
    return decayed(clipped(gradients, scratch, rescale, clip), weights, scratch, decay)


def decayed_and_clipped(
    gradients: Array, weights: Array, scratch: Array, decay: float, rescale: float, clip: float
) -> Array:
    """Return ``clamp(rescale * gradients + decay * weights, -clip, clip)``."""
    rescaled = _rescaled(gradients, scratch, rescale)
    return _clamped(decayed(rescaled, weights, scratch, decay), scratch, clip)


# A factor of 1 and a decay of 0 are skipped: neither changes a bit of a finite element.


def _rescaled(gradients: Array, scratch: Array, rescale: float) -> Array:
    return gradients if rescale == 1 else np.multiply(gradients, rescale, out=scratch[0])


def _clamped(gradients: Array, scratch: Array, clip: float) -> Array:
    return gradients if clip < 0 else np.clip(gradients, -clip, clip, out=scratch[0])


EPSILON = 1e-8
"""Addend of the norm by which `global_scale` divides: that of Gluon's ``clip_global_norm``."""


def global_scale(total: Array, rescale: Array) -> Array:
    """Return the factor that brings the norm of all gradients to a bound, if it is larger.

    Parameters
    ----------
    total : ndarray of float64, shape (2,)
        The sum of the squares of all gradients, before they are rescaled, and the bound.
    rescale : ndarray of float64, shape (n,)
        Factors of the gradients.
    """
    scale = total[1] / (np.sqrt(total[0]) * np.abs(rescale) + EPSILON)
    # A NaN passes: the weights show it.
    return np.where(scale >= 1, 1.0, scale)
