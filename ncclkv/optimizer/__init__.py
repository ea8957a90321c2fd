"""Built-in optimizers, with MXNet's names and arithmetic."""

from __future__ import annotations

from sys import modules
from typing import TYPE_CHECKING

from ncclkv.optimizer.adadelta import AdaDelta
from ncclkv.optimizer.adagrad import AdaGrad
from ncclkv.optimizer.adam import Adam
from ncclkv.optimizer.adamax import Adamax
from ncclkv.optimizer.adamw import AdamW
from ncclkv.optimizer.base import Optimizer, State
from ncclkv.optimizer.ftml import FTML
from ncclkv.optimizer.ftrl import Ftrl
from ncclkv.optimizer.lamb import LAMB
from ncclkv.optimizer.lars import LARS
from ncclkv.optimizer.lion import Lion
from ncclkv.optimizer.nadam import Nadam
from ncclkv.optimizer.nag import NAG
from ncclkv.optimizer.registry import create, register
from ncclkv.optimizer.rmsprop import RMSProp
from ncclkv.optimizer.schedule import (
    CosineScheduler,
    FactorScheduler,
    MultiFactorScheduler,
    PolyScheduler,
)
from ncclkv.optimizer.sgd import SGD
from ncclkv.optimizer.signum import Signum
from ncclkv.optimizer.test import Test
from ncclkv.optimizer.updater import get_updater
from ncclkv.other_names import OF_OPTIMIZERS, missing

__all__ = [
    "SGD",
    "NAG",
    "Adam",
    "AdamW",
    "RMSProp",
    "AdaGrad",
    "Ftrl",
    "Signum",
    "Test",
    "Adamax",
    "Nadam",
    "AdaDelta",
    "FTML",
    "Lion",
    "LARS",
    "LAMB",
    "CosineScheduler",
    "FactorScheduler",
    "MultiFactorScheduler",
    "PolyScheduler",
    "Optimizer",
    "State",
    "create",
    "get_updater",
    "register",
]


if not TYPE_CHECKING:  # a type checker would take any name for an attribute

    def __getattr__(name):
        """Refuse a name; the error has advice for names of ``mxnet.optimizer``."""
        raise missing(f"module {__name__!r}", name, OF_OPTIMIZERS, modules[__name__])


def __dir__() -> list[str]:
    """List the public names."""
    return [*__all__, *(name for name in globals() if name.startswith("__"))]


_CLASSES: tuple[type[Optimizer], ...] = (
    SGD,
    NAG,
    Adam,
    AdamW,
    RMSProp,
    AdaGrad,
    Ftrl,
    Signum,
    Test,
    Adamax,
    Nadam,
    AdaDelta,
    FTML,
    Lion,
    LARS,
    LAMB,
)
for _each in _CLASSES:
    register(_each)
