"""Built-in optimizers, with MXNet's names and arithmetic."""

from __future__ import annotations

from ncclkv.optimizer.base import Optimizer, State
from ncclkv.optimizer.registry import create, register
from ncclkv.optimizer.schedule import (
    CosineScheduler,
    FactorScheduler,
    MultiFactorScheduler,
    PolyScheduler,
)
from ncclkv.optimizer.sgd import SGD
from ncclkv.optimizer.updater import get_updater

__all__ = [
    "SGD",
    "CosineScheduler",
    "FactorScheduler",
    "MultiFactorScheduler",
    "Optimizer",
    "PolyScheduler",
    "State",
    "create",
    "get_updater",
    "register",
]


def __dir__() -> list[str]:
    """List the public names."""
    return [*__all__, *(name for name in globals() if name.startswith("__"))]


for _each in (SGD,):
    register(_each)
