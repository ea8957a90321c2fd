"""What a sum does to weights: it replaces them, or is a step of an optimizer's."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from ncclkv.kernels.base import Array, Segments
from ncclkv.kernels.host import compiled
from ncclkv.kernels.host.chunks import piece_length, ranges, working_dtype
from ncclkv.kernels.host.memory import move


class _Step(NamedTuple):
    """The numbers of one step."""

    learning_rate: float
    momentum: float
    weight_decay: float
    rescale: float
    clip: float | None


def assign(total: Array, weights: Array, skip: Array) -> None:
    """Copy `total` into `weights`, unless ``skip[0]`` is not 0."""
    if not skip[0]:
        move(weights, total, total.nbytes)


def sgd(
    weights: Array,
    gradients: Array,
    momenta: Array | None,
    *,
    learning_rate: float | Array,
    momentum: float,
    weight_decay: float,
    rescale: float,
    clip: float | None,
    segments: Segments | None = None,
    skip: Array | None = None,
) -> None:
    """One step of stochastic gradient descent, in place, as MXNet's ``sgd_update`` does it.

    ::

        g = clamp(rescale * gradient, -clip, clip) + weight_decay * weight
        without momenta:  weight -= learning_rate * g
        with momenta:     m = momentum * m - learning_rate * g;  weight += m

    Parameters
    ----------
    weights : ndarray, shape (n,)
        float16, bfloat16, float32 or float64; 16-bit weights are updated in float32 and rounded
        once.
    gradients : ndarray, shape (n,)
        Of the weights' dtype; left unchanged.
    momenta : ndarray, shape (n,), optional
        float32 for 16-bit weights, else of the weights' dtype.  Without it `momentum` is unused.
    learning_rate, momentum, weight_decay, rescale : float
        The numbers of the formula; the learning rate may be an array of one float64.
    clip : float, optional
        Bound on the absolute value of each rescaled gradient.
    segments : Segments, optional
        The ranges to update, with factors of `learning_rate` and `weight_decay`.
    skip : ndarray of int32, shape (1,), optional
        Unless it is 0, nothing is changed.
    """
    if skip is not None and skip[0]:
        return
    rate = float(np.asarray(learning_rate).item())
    offsets, lr_mult, wd_mult = segments or ((0, weights.size), (1.0,), (1.0,))
    for (lo, hi), of_rate, of_decay in zip(pairwise(offsets), lr_mult, wd_mult, strict=True):
        step = _Step(rate * of_rate, momentum, weight_decay * of_decay, rescale, clip)
        momenta_here = None if momenta is None else momenta[lo:hi]
        _sgd_range(weights[lo:hi], gradients[lo:hi], momenta_here, step)


def _sgd_range(weights: Array, gradients: Array, momenta: Array | None, step: _Step) -> None:
    """Update a range: in C where that is active and can, else piece by piece."""
    # Asked here, for the buffer protocol has no word for bfloat16.
    in_c = compiled.active and weights.dtype in compiled.REAL
    if in_c and compiled.sgd(weights, gradients, momenta, *step):
        return
    working = working_dtype(weights.dtype)
    length = piece_length(working)
    scratch = np.empty((3, min(length, weights.size)), working)
    with np.errstate(all="ignore"):
        for piece in ranges(weights.size, length):
            _sgd_piece(
                weights[piece],
                gradients[piece],
                None if momenta is None else momenta[piece],
                scratch[:, : piece.stop - piece.start],
                step,
            )


def _sgd_piece(
    stored: Array, gradient: Array, momenta: Array | None, buffers: Array, step: _Step
) -> None:
    """Update one piece; `buffers` are three scratch rows in the working dtype."""
    change, decay, weights = buffers
    if stored.dtype == weights.dtype:
        weights = stored
    else:
        np.copyto(weights, stored)
        np.copyto(change, gradient)
        gradient = change
    # What would multiply by 1, or add 0, is left out: it would change no bit of a number.
    if step.rescale != 1:
        gradient = np.multiply(gradient, step.rescale, out=change)
    if step.clip is not None:
        gradient = np.clip(gradient, -step.clip, step.clip, out=change)
    if step.weight_decay:
        np.multiply(weights, step.weight_decay, out=decay)
        gradient = np.add(gradient, decay, out=change)
    np.multiply(gradient, step.learning_rate, out=change)
    if momenta is None:
        np.subtract(weights, change, out=weights)
    else:
        np.multiply(momenta, step.momentum, out=momenta)
        np.subtract(momenta, change, out=momenta)
        np.add(weights, momenta, out=weights)
    if weights is not stored:
        np.copyto(stored, weights, casting="same_kind")
