"""Every optimizer on a store, against its model in float64 and against MXNet's values.

The ranks push multiples of one gradient, which add up to this gradient.  So the weights are equal
on any number of ranks, and equal to those that MXNet's optimizers have reached.
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

import ncclkv.optimizer as optimizer
from ncclkv.engine.bucket_state import SHARED_FROM_BYTES
from tests.conformance.registry import case
from tests.conformance.stores import Stores
from tests.harness.context import context_of
from tests.optimizers.cases import TOLERANCES, dtype_of, recorded
from tests.optimizers.models import Trajectory
from tests.optimizers.settings import (
    FACTORED,
    FACTORS,
    SETTINGS,
    SIZE,
    STEPS,
    gradient,
    weights,
)

CHECKED = (1, 2, STEPS)
"""Steps after which weights are compared, those of MXNet's recorded values."""

PERIOD = 17
"""Steps after which gradients repeat."""

REAL_PART = {"complex64": "float32", "complex128": "float64"}

Array = NDArray[Any]


def share(rank: int, size: int) -> int:
    """Return the factor of a rank's gradients; the factors of all ranks add up to 1."""
    others = [each + 2 for each in range(size - 1)]
    return [*others, 1 - sum(others)][rank]


def array_of(numbers: Array, name: str, size: int) -> Array:
    """Return numbers repeated to a length; complex numbers are pairs of numbers."""
    real, dtype = dtype_of(REAL_PART.get(name, name)), dtype_of(name)
    return np.resize(numbers.astype(real), size * dtype.itemsize // real.itemsize).view(dtype)


class Keys:
    """Two keys of each dtype, the first with the factors of the learning rate and of the decay.

    With `shared` the second key is so large that the ranks of a node share its bucket's weights.
    """

    def __init__(self, names: tuple[str, ...], shared: bool) -> None:
        self.dtypes = [name for name in names for _ in range(2)]
        self.names = [f"{name}.{kind}" for name in names for kind in ("factored", "plain")]
        self.sizes: list[int] = []
        for name in names:
            # Whole repetitions of the numbers.
            whole = SIZE * (SHARED_FROM_BYTES // dtype_of(name).itemsize // SIZE + 1)
            self.sizes += [SIZE, whole if shared else SIZE]

    def arrays(self, numbers: Array) -> list[Array]:
        """Return an array for each key."""
        return [array_of(numbers, *each) for each in zip(self.dtypes, self.sizes, strict=True)]


@cache
def keys_of(names: tuple[str, ...], shared: bool) -> Keys:
    """Return the same keys for the same arguments."""
    return Keys(names, shared)


@cache
def gradients(keys: Keys, factor: int, step: int) -> list[Array]:
    """Return what a rank pushes in a step."""
    return keys.arrays(factor * gradient(step))


@cache
def trajectory(name: str, number: int, factored: bool, dtype: str) -> list[Array]:
    """Return the model's weights after the steps of `CHECKED`, rounded to `dtype` in each step."""
    by_key = FACTORS if factored else {}
    model = Trajectory(name, SETTINGS[name][number], weights(), **by_key)
    real, found = dtype_of(dtype), []
    for step in range(1, STEPS + 1):
        model.step(gradient(step))
        model.weights = model.weights.astype(real).astype(np.float64)
        if step in CHECKED:
            found.append(model.weights)
    return found


def expected(name: str, number: int, factored: bool, dtype: str, masters: bool) -> list[Array]:
    """Return the model's weights after the steps of `CHECKED`, in a key's dtype."""
    real = dtype_of(dtype)
    narrow = real.itemsize == 2 and not masters
    found = trajectory(name, number, factored, dtype if narrow else "float64")
    return [each.astype(real).astype(np.float64) for each in found]


def check(found: Array, wanted: Array, dtype: str, text: str) -> None:
    """Compare all elements of a key with the model's weights."""
    numbers = found.view(found.real.dtype) if found.dtype.kind == "c" else found
    repeated = numbers.reshape(-1, wanted.size).astype(np.float64)
    error = np.abs(repeated - wanted)
    assert (error <= TOLERANCES[dtype] * np.maximum(1, np.abs(wanted))).all(), text


def check_mxnet(found: Array, name: str, number: int, step: int) -> None:
    """Compare float32 weights with those of MXNet 1.9.1, if MXNet has the optimizer."""
    if name in recorded():
        wanted = np.asarray(recorded()[name][number][str(step)])
        text = f"{name}, settings {number}, step {step}"
        repeated = found.reshape(-1, wanted.size)
        np.testing.assert_allclose(
            repeated, np.broadcast_to(wanted, repeated.shape), rtol=1e-6, atol=1e-6, err_msg=text
        )


class Follower:
    """A store with these keys, on which optimizers make steps that are checked.

    As a training loop does, it pushes the same arrays in each step, with other numbers.
    """

    def __init__(self, kv: Any, keys: Keys) -> None:
        self._kv, self._keys = kv, keys
        self._first, self._pushed, self._outs = (keys.arrays(weights()) for _ in range(3))
        kv.init(keys.names, self._first)

    def follow(self, name: str, number: int, masters: bool, steps: int) -> None:
        """Make steps of an optimizer from the first weights, and check them."""
        kv, keys = self._kv, self._keys
        chosen = optimizer.create(name, **SETTINGS[name][number], multi_precision=masters)
        chosen.lr_mult = dict.fromkeys(keys.names[::2], FACTORS["lr_mult"])
        chosen.wd_mult = dict.fromkeys(keys.names[::2], FACTORS["wd_mult"])
        kv.set_optimizer(chosen, reset_states=True)
        kv.reset(keys.names, self._first)
        factor = share(kv.rank, kv.num_workers)
        for step in range(1, steps + 1):
            for array, given in zip(
                self._pushed, gradients(keys, factor, step % PERIOD), strict=True
            ):
                array[...] = given
            kv.push(keys.names, self._pushed)
            if step in CHECKED:
                self._check(name, number, masters, step)

    def _check(self, name: str, number: int, masters: bool, step: int) -> None:
        """Compare the weights of all keys after a step."""
        for out in self._outs:
            out.fill(77)
        self._kv.pull(self._keys.names, out=self._outs)
        for index, (dtype, out) in enumerate(zip(self._keys.dtypes, self._outs, strict=True)):
            real, factored = REAL_PART.get(dtype, dtype), index % 2 == 0
            wanted = expected(name, number, factored, real, masters)[CHECKED.index(step)]
            key = self._keys.names[index]
            check(out, wanted, real, f"{name}, settings {number}, {key}, step {step}")
            if dtype == "float32" and factored == (number == FACTORED):
                check_mxnet(out, name, number, step)


def last_step(create: Stores, kv: Any) -> int:
    """Return the number of steps: many on processes of one node, few elsewhere."""
    one_node = context_of(kv).comm.local_size == kv.num_workers
    return STEPS if one_node and create.name in ("local", "dist_sync") else CHECKED[1]


def compare(create: Stores, dtypes: tuple[str, ...], names: list[str]) -> None:
    """Check optimizers with weights that each rank has, then with masters and shared weights."""
    for shared in (False, True):
        kv = create()
        follower = Follower(kv, keys_of(dtypes, shared))
        for name in names:
            # The last settings, or the first if the last are those with factors.
            other = len(SETTINGS[name]) - 1
            number = FACTORED if not shared else other if other != FACTORED else 0
            follower.follow(name, number, shared, last_step(create, kv))


@case()
def every_optimizer_follows_its_model_and_mxnet(create: Stores) -> None:
    dtypes = ("float32", "float64", "float16", "bfloat16")
    compare(create, dtypes if find_spec("ml_dtypes") else dtypes[:3], list(SETTINGS))


@case()
def complex_weights_follow_the_model(create: Stores) -> None:
    names = [name for name in SETTINGS if optimizer.create(name).complex_weights]
    compare(create, ("complex64", "complex128"), names)
