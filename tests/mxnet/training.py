"""Training on stores of both libraries, from the same weights and gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

STEPS = 50
SHAPES = {"fc_weight": (3, 4), "fc_bias": (3,), "bn_gamma": (5,), "table": (2, 2)}
FACTORS = {"fc_bias": 2.0, "table": 0.5}


def named(name: str, **arguments: Any) -> Any:
    """Return an optimizer of MXNet with factors by name."""
    import mxnet as mx

    names = dict(enumerate(SHAPES))
    made = mx.optimizer.create(name, param_idx2name=names, wd=0.01, rescale_grad=0.5, **arguments)
    made.set_lr_mult(FACTORS)
    made.set_wd_mult({"fc_weight": 3.0})
    return made


def gradients(rank: int, step: int) -> list[Any]:
    """Return a rank's gradients of a step."""
    import mxnet as mx

    generator = np.random.default_rng((rank, step))
    return [mx.nd.array(generator.standard_normal(shape)) for shape in SHAPES.values()]


def trained(
    kv: Any,
    keys: Sequence[Any],
    ranks: Sequence[int],
    change: Callable[[int], None] = lambda step: None,
) -> list[np.ndarray]:
    """Return the weights after all steps; in each step a store is pushed the arrays of `ranks`."""
    import mxnet as mx

    generator = np.random.default_rng(1)
    weights = [mx.nd.array(generator.standard_normal(shape)) for shape in SHAPES.values()]
    kv.init(list(keys), weights)
    for step in range(STEPS):
        change(step)
        pushed = [*zip(*(gradients(rank, step) for rank in ranks), strict=True)]
        if step % 2:  # as Gluon does
            for key, values, out in zip(keys, pushed, weights, strict=True):
                kv.pushpull(key, list(values), out=out)
        else:
            kv.push(list(keys), [list(values) for values in pushed])
            kv.pull(list(keys), out=weights)
    return [each.asnumpy() for each in weights]


def difference(one: Sequence[np.ndarray], other: Sequence[np.ndarray]) -> float:
    """Return the largest difference of two lists of weights, relative to 1 or to the weight."""
    return max(
        float(np.max(np.abs(a - b) / np.maximum(1, np.abs(a))))
        for a, b in zip(one, other, strict=True)
    )
