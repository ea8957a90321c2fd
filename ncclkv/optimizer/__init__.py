"""Optimizers that a store runs by itself, with MXNet's names and arithmetic."""

from __future__ import annotations

from typing import Any

from ncclkv.arguments import check_length, nearest
from ncclkv.errors import UsageError
from ncclkv.optimizer.base import Optimizer, State
from ncclkv.optimizer.sgd import SGD

__all__ = ["SGD", "Optimizer", "State", "create"]


def __dir__() -> list[str]:
    """List the public names."""
    return [*__all__, *(name for name in globals() if name.startswith("__"))]


_BY_NAME: dict[str, type[Optimizer]] = {"sgd": SGD}


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
    chosen = _BY_NAME.get(name.lower()) if isinstance(name, str) else None
    if chosen is None:
        check_length("an optimizer's name", name)
        raise UsageError(
            f"optimizer {name!r} is unknown; {nearest(name, _BY_NAME)}use one of "
            f"{', '.join(_BY_NAME)}"
        )
    return chosen(**kwargs)
