"""Arguments of optimizers that are numbers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ncclkv.arguments import check_length
from ncclkv.errors import UsageError

# `float` accepts these too: text, and NumPy's complex numbers, whose imaginary part it drops.
_NO_NUMBERS = (str, bytes, np.complexfloating)


def finite(name: str, value: Any, *, least: float | None = None) -> float:
    """Return `value` as a float.

    Parameters
    ----------
    name : str
        The argument's name, for the message.
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
        For a bound of 0, which would train nothing without an error, and for a negative one.
    """
    if value is None:
        return None
    bound = finite(name, value)
    if bound <= 0:
        raise UsageError(f"{name} is {value!r}; give a bound above 0, or None to clip nothing")
    return bound
