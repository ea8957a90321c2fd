"""The names of optimizers: `register` adds a class, `create` makes an optimizer of a class."""

from __future__ import annotations

from typing import Any, TypeVar

from ncclkv.arguments import check_known
from ncclkv.errors import UsageError
from ncclkv.frames import warn
from ncclkv.optimizer.base import Optimizer
from ncclkv.other_names import OF_OPTIMIZERS, optimizer_of_another
from ncclkv.tracebacks import public

_BY_NAME: dict[str, type[Optimizer]] = {}

OptimizerClass = TypeVar("OptimizerClass", bound=type[Optimizer])


@public
def register(optimizer: OptimizerClass) -> OptimizerClass:
    """Register a class for `create`, under its name in lower case; a decorator.

    As in MXNet a second class of a name replaces the first, with a warning.  The same class may be
    defined again without one, as a notebook does.  All ranks must register the same classes.

    Parameters
    ----------
    optimizer : type
        A subclass of `Optimizer`; its attribute `name` becomes the name in lower case.

    Returns
    -------
    type
        The class.

    Raises
    ------
    UsageError
        When the argument is no such class.

    Examples
    --------
    >>> from ncclkv.optimizer import SGD
    >>> @register
    ... class Slow(SGD):
    ...     def learning_rate_of(self, key):
    ...         return 0.5 * super().learning_rate_of(key)
    >>> create("slow", learning_rate=0.5)
    Slow(learning_rate=0.5, momentum=0.0, wd=0.0, rescale_grad=1.0, clip_gradient=None)
    """
    if not (isinstance(optimizer, type) and issubclass(optimizer, Optimizer)):
        raise UsageError(
            f"register takes a subclass of ncclkv.optimizer.Optimizer, not {optimizer!r}; write "
            f"it above a class definition as @ncclkv.optimizer.register"
        )
    name = optimizer.__name__.lower()
    before = _BY_NAME.get(name)
    if before is not None and _path(before) != _path(optimizer):
        warn(
            f"optimizer {name!r} is now {_path(optimizer)}, and was {_path(before)}; rename the "
            f"class to keep both"
        )
    optimizer.name = name
    _BY_NAME[name] = optimizer
    return optimizer


def _path(optimizer: type[Optimizer]) -> str:
    """Return the full name of a class."""
    return f"{optimizer.__module__}.{optimizer.__qualname__}"


@public
def create(name: str | Optimizer, **kwargs: Any) -> Optimizer:
    """Make an optimizer from its name.

    Parameters
    ----------
    name : str or Optimizer
        ``"sgd"``, or a name given by `register`, in any case.  An optimizer is returned as it is.
    **kwargs
        Arguments of the optimizer's class; none beside an optimizer.

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
    if isinstance(name, Optimizer):
        if kwargs:
            raise UsageError(
                f"create: {name!r} is an optimizer already, and cannot take "
                f"{', '.join(kwargs)}; assign to its attributes, or give its name instead"
            )
        return name
    lower = name.lower() if isinstance(name, str) else name
    if found := optimizer_of_another(name):
        raise UsageError(f"create: {found}")
    for other, advice in OF_OPTIMIZERS.items():
        if lower == other.lower() and lower not in _BY_NAME:
            raise UsageError(f"create: there is no optimizer {name!r}; {advice}")
    check_known("optimizer", lower, _BY_NAME)
    return _BY_NAME[lower](**kwargs)
