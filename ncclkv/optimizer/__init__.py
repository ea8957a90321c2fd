"""Built-in optimizers, with MXNet's names and arithmetic."""

from __future__ import annotations

from typing import Any

from ncclkv.arguments import check_known
from ncclkv.optimizer.base import Optimizer, State
from ncclkv.optimizer.sgd import SGD

__all__ = ["SGD", "Optimizer", "State", "create"]


def __dir__() -> list[str]:
    """List the public names."""
    return [*__all__, *(name for name in globals() if name.startswith("__"))]


_BY_NAME: dict[str, type[Optimizer]] = {each.name: each for each in (SGD,)}


def create(name: str, **kwargs: Any) -> Optimizer:
    """Make an optimizer from its name.

    Parameters
    ----------
    name : str
        ``"sgd"``, in any case.
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
    >>> create("sgdd")
    Traceback (most recent call last):
        ...
    ncclkv.errors.UsageError: optimizer 'sgdd' is unknown; did you mean 'sgd'? use one of sgd
    """
    lower = name.lower() if isinstance(name, str) else name
    check_known("optimizer", lower, _BY_NAME)
    return _BY_NAME[lower](**kwargs)
