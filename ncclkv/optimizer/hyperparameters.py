"""Checks of hyperparameters; `Factors`: those by key; `Names`: names of keys."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np

from ncclkv.arguments import check_length
from ncclkv.errors import UsageError
from ncclkv.typing import Key

Value = TypeVar("Value")
Counted = TypeVar("Counted", bound="CountedDict[Any]")

# `float` accepts text, takes a flag as 0 or 1, and drops the imaginary part of NumPy's complex
# numbers.
_NO_REALS = (bool, np.bool_, str, bytes, np.complexfloating)


def finite(name: str, value: Any, *, least: float | None = None) -> float:
    """Return `value` as a float.

    Parameters
    ----------
    name : str
        Name of the argument, for the error's text.
    value : Any
    least : float, optional
        The smallest value that is accepted.

    Raises
    ------
    UsageError
        When `value` is a bool, is not a finite real number, or is less than `least`.

    Examples
    --------
    >>> finite("wd", 1, least=0.0)
    1.0
    """
    check_length(name, value)
    try:
        found = float("nan") if isinstance(value, _NO_REALS) else float(value)
    except (TypeError, ValueError, OverflowError):
        found = float("nan")
    if not math.isfinite(found):
        raise UsageError(f"{name} is {value!r}; give a finite number")
    if least is not None and found < least:
        raise UsageError(f"{name} is {value!r}; give a number of at least {least:g}")
    return found


def not_negative(name: str, value: Any) -> float:
    """Return a number of at least 0 as a float.

    Raises
    ------
    UsageError
        When `value` is not such a number.
    """
    return finite(name, value, least=0.0)


def fraction(name: str, value: Any) -> float:
    """Return a number of at least 0 and below 1 as a float.

    Raises
    ------
    UsageError
        When `value` is not such a number.
    """
    found = finite(name, value)
    if not 0 <= found < 1:
        raise UsageError(f"{name} is {value!r}; give a number of at least 0 and below 1")
    return found


def clipping_bound(name: str, value: Any) -> float | None:
    """Return a bound above 0 as a float, or None.

    Raises
    ------
    UsageError
        When the bound is negative or 0: clipping to 0 would silently train nothing.
    """
    if value is None:
        return None
    bound = finite(name, value)
    if bound <= 0:
        raise UsageError(f"{name} is {value!r}; give a bound above 0, or None to clip nothing")
    return bound


MOMENTS = {"beta1": fraction, "beta2": fraction, "epsilon": not_negative}
"""Checks of the attributes that optimizers with moving means of g and of its square add."""


def _counted(method: Callable[..., Any]) -> Any:
    """Make a method of dict count a change."""

    def change(self: CountedDict[Any], *arguments: Any, **items: Any) -> Any:
        self.version += 1
        return method(self, *arguments, **items)

    return change


class CountedDict(dict[Key, Value], ABC):
    """A dict by key that counts its changes, so that a push need not read an unchanged dict.

    Attributes
    ----------
    version : int
        The count of changes.
    """

    # On the class too: pickle puts the items in before it sets attributes.
    version = 0
    _frozen: tuple[int, Any] | None = None

    __setitem__ = _counted(dict.__setitem__)
    __delitem__ = _counted(dict.__delitem__)
    __ior__ = _counted(dict.__ior__)
    clear = _counted(dict.clear)
    pop = _counted(dict.pop)
    popitem = _counted(dict.popitem)
    setdefault = _counted(dict.setdefault)
    update = _counted(dict.update)

    @abstractmethod
    def checked(self: Counted, name: str) -> Counted:
        """Return a checked copy; `name` begins an error's text."""

    def frozen(self: Counted, name: str) -> Counted:
        """Return a checked copy, the same object until the next change; callers only read it.

        Raises
        ------
        UsageError
            When an item is wrong; `name` begins the error's text.
        """
        if self._frozen is None or self._frozen[0] != self.version:
            self._frozen = self.version, self.checked(name)
        found: Counted = self._frozen[1]
        return found


class Factors(CountedDict[float]):
    """Factors of a hyperparameter, by key or by its name."""

    def checked(self, name: str) -> Factors:
        return checked_factors(name, self)


class Names(CountedDict[str]):
    """Names of keys."""

    def checked(self, name: str) -> Names:
        return checked_names(name, self)


def checked_factors(name: str, factors: Mapping[Key, float]) -> Factors:
    """Return a copy of `factors` as floats.

    Raises
    ------
    UsageError
        When `factors` is not a mapping, or a factor is not a finite number.
    """
    if not isinstance(factors, Mapping):
        raise UsageError(f"{name} is a {type(factors).__name__}; give a dict of factors by key")
    for key in factors:
        check_length(f"a key of {name}", key)
    return Factors((key, finite(f"{name} of key {key!r}", x)) for key, x in factors.items())


def checked_names(name: str, names: Mapping[Any, str]) -> Names:
    """Return a copy of `names`, the names of integer keys.

    Raises
    ------
    UsageError
        When `names` is not a mapping of int to str.
    """
    if not isinstance(names, Mapping):
        raise UsageError(f"{name} is a {type(names).__name__}; give a dict of names by key")
    for key, text in names.items():
        check_length(f"a key of {name}", key)
        if type(key) is not int or not isinstance(text, str):
            raise UsageError(f"{name} has the item {key!r}: {text!r}; give names (str) by int")
    return Names(names)
