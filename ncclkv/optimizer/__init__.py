"""Built-in optimizers, with MXNet's names and arithmetic."""

from __future__ import annotations

from typing import Any

from ncclkv.arguments import check_known
from ncclkv.optimizer.adadelta import AdaDelta
from ncclkv.optimizer.adagrad import AdaGrad
from ncclkv.optimizer.adam import Adam
from ncclkv.optimizer.adamax import Adamax
from ncclkv.optimizer.adamw import AdamW
from ncclkv.optimizer.base import Optimizer, State
from ncclkv.optimizer.ftml import FTML
from ncclkv.optimizer.ftrl import Ftrl
from ncclkv.optimizer.lion import Lion
from ncclkv.optimizer.nadam import Nadam
from ncclkv.optimizer.nag import NAG
from ncclkv.optimizer.rmsprop import RMSProp
from ncclkv.optimizer.sgd import SGD
from ncclkv.optimizer.signum import Signum
from ncclkv.optimizer.test import Test

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
    "Optimizer",
    "State",
    "create",
]


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
)
_BY_NAME = {each.name: each for each in _CLASSES}


def create(name: str, **kwargs: Any) -> Optimizer:
    """Make an optimizer from its name.

    Parameters
    ----------
    name : str
        Name of a class of this module, such as ``"sgd"``, in any case.
    **kwargs
        Arguments of the optimizer's class.

    Returns
    -------
    Optimizer

    Raises
    ------
    UsageError
        When the name or an argument is unknown, or an argument's value is refused.

    Examples
    --------
    >>> create("SGD", learning_rate=0.5, momentum=0.9)
    SGD(learning_rate=0.5, momentum=0.9, wd=0.0, rescale_grad=1.0, clip_gradient=None)
    >>> create("sgdd")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    ncclkv.errors.UsageError: optimizer 'sgdd' is unknown; did you mean 'sgd'? use one of sgd, ...
    """
    lower = name.lower() if isinstance(name, str) else name
    check_known("optimizer", lower, _BY_NAME)
    return _BY_NAME[lower](**kwargs)
