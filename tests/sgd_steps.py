"""Steps of SGD through `Kernels.update`, from hyperparameters by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ncclkv.kernels.base import Kernels, Segments


def segments_of(*bounds: int) -> Segments:
    """Return segments between neighbouring bounds."""
    return Segments(np.array(bounds, np.int64))


def rows(
    *,
    learning_rate: float,
    momentum: float,
    weight_decay: float,
    rescale: float,
    clip: float | None,
    lr_mult: Sequence[float] = (1.0,),
    wd_mult: Sequence[float] = (1.0,),
) -> np.ndarray:
    """Return scalars of the program ``sgd``, one row for each pair of factors."""
    bound = -1.0 if clip is None else clip
    return np.array(
        [
            (learning_rate * lr, momentum, weight_decay * wd, rescale, bound)
            for lr, wd in zip(lr_mult, wd_mult, strict=True)
        ]
    )


def sgd(
    kernels: Kernels,
    weights: Any,
    gradients: Any,
    momenta: Any,
    *,
    put: Callable[[np.ndarray], Any] = np.asarray,
    segments: Segments | None = None,
    skip: Any = None,
    master: Any = None,
    **hyperparameters: Any,
) -> None:
    """Make a step on all elements, or on `segments`; `put` copies to the kernels' memory."""
    kernels.update(
        "sgd",
        weights,
        gradients,
        () if momenta is None else (momenta,),
        put(rows(**hyperparameters)),
        segments or segments_of(0, weights.size),
        skip,
        master,
    )
