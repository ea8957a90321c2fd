"""A model of optimizers without one of NumPy: the same optimizer in a store of one rank."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

import ncclkv
from tests.world.arrays import Array
from tests.world.model import Model, State
from tests.world.plan import Key, KeyPlan, Other, StorePlan


class Twin(Model):
    """A store as all ranks must see it, whose reductions are NumPy's and whose updates are not."""

    def __init__(self, plan: StorePlan, size: int) -> None:
        self._local: Any = ncclkv.create("local")
        self._local.set_optimizer(optimizer(plan.optimizer))
        super().__init__(plan, size)

    def init(self, keys: Iterable[KeyPlan]) -> None:
        new = list(keys)
        super().init(new)
        for key in new:
            self._local.init(key.key, np.zeros(key.shape, key.dtype))

    def fold(self, name: Key, total: Array) -> None:
        self._local.push(name, total)
        self.values[name] = np.asarray(self._local.pull(name))

    def reset(self, key: KeyPlan, step: int) -> None:
        super().reset(key, step)
        self._local.reset(key.key, self.values[key.key])

    def state(self) -> State | None:
        return None

    def close(self) -> None:
        """Free the store of one rank."""
        self._local.close()


def optimizer(rule: Any) -> Any:
    """Return an optimizer by its name."""
    assert isinstance(rule, Other)
    return ncclkv.optimizer.create(rule.name, learning_rate=rule.learning_rate)
