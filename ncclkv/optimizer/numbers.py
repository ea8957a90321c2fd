"""Checks of the numbers that are arguments of optimizers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ncclkv.arguments import check_length
from ncclkv.errors import UsageError

# `float` accepts text, and drops the imaginary part of NumPy's complex numbers.
_NO_NUMBERS = (str, bytes, np.complexfloating)


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
        When `value` is not a finite real number, or is less than `least`.

    Examples
    --------
    >>> finite("wd", 1, least=0.0)
    1.0
    """
    check_length(name, value)
    try:
        number = float("nan") if isinstance(value, _NO_NUMBERS) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = float("nan")
    if not math.isfinite(number):
        raise UsageError(f"{name} is {value!r}; give a finite number")
    if least is not None and number < least:
        raise UsageError(f"{name} is {value!r}; give a number of at least {least:g}")
    return number


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
