"""`Parameter`: a parameter that a codec declares; and the checks of parameters.

A check is called with the name of the parameter and the value that a user gave.  The check returns
the value that the codec takes, or raises a `UsageError` that begins with the name.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ncclkv.arguments import check_count, check_flag, check_known, check_length
from ncclkv.errors import UsageError

Check = Callable[[str, Any], Any]


class Parameter(NamedTuple):
    """A parameter of a codec.

    Attributes
    ----------
    name : str
    default : Any
    check : callable
    alias : str
        A second name; empty if there is none.
    """

    name: str
    default: Any
    check: Check
    alias: str = ""


def scalar(words: str, allows: Callable[[float], bool]) -> Check:
    """Return the check of a real scalar, which may be text: MXNet sends each parameter as text.

    Parameters
    ----------
    words : str
        The scalars that are allowed, for the error.
    allows : callable
        Called with the scalar as a float, which may be NaN or infinite.

    Examples
    --------
    >>> check = scalar("a number above 0, such as 0.5", lambda value: value > 0)
    >>> check("threshold", "2.5")
    2.5
    >>> check("threshold", 0)
    Traceback (most recent call last):
        ...
    ncclkv.errors.UsageError: threshold=0 is not a number above 0, such as 0.5; give one
    """

    def check(what: str, given: Any) -> float:
        check_length(what, given)
        value = _float_of(given)
        if value is None or not allows(value):
            raise UsageError(f"{what}={given!r} is not {words}; give one")
        return value

    return check


def _float_of(given: Any) -> float | None:
    """Return a scalar as a float; None for anything else, and for a bool."""
    if isinstance(given, np.ndarray) and given.ndim == 0:
        given = given[()]
    if isinstance(given, bool) or not isinstance(given, (int, float, str, np.integer, np.floating)):
        return None
    try:
        return float(given)
    except (ValueError, OverflowError):
        return None


def in_float32(value: float) -> float:
    """Return a scalar rounded to float32; it may become infinite."""
    with np.errstate(all="ignore"):
        return float(np.float32(value))


finite = scalar(
    "a finite number of float32, such as 0.5", lambda value: math.isfinite(in_float32(value))
)
above_0 = scalar(
    "a finite number above 0 in float32, such as 0.5",
    lambda value: 0 < in_float32(value) < math.inf,
)
share = scalar("a number above 0 and at most 1, such as 0.01", lambda value: 0 < value <= 1)
flag: Check = check_flag
count: Check = check_count
at_least_1: Check = functools.partial(check_count, minimum=1)


def _scope(what: str, given: Any) -> str:
    """Return one of the scopes."""
    check_known(what, given, ("rank", "node"))
    return str(given)


SCOPE = Parameter("scope", "rank", _scope)
"""The sender of all codecs: a rank, or the ranks of a node together, whose sum is encoded."""
