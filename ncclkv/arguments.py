"""Checks of arguments that several parts of the package share."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from ncclkv.errors import UnknownArgument, UsageError
from ncclkv.tracebacks import P, Result, public

MAX_BITS = 3000
"""Longest int that is accepted: Python prints at most 4,300 digits, JSON of a checkpoint 1,000."""


def too_long(value: Any) -> bool:
    """Return whether `value` is an int of more than `MAX_BITS` bits.

    Examples
    --------
    >>> too_long(2**3000), too_long(-(2**70)), too_long("text")
    (True, False, False)
    """
    return isinstance(value, int) and int.bit_length(value) > MAX_BITS


def check_length(what: str, value: Any) -> None:
    """Refuse an int that is too long for a message.

    Parameters
    ----------
    what : str
        Name of the argument; the message begins with it.
    value : Any

    Raises
    ------
    UsageError
    """
    if too_long(value):
        raise UsageError(
            f"{what} is an int of {int.bit_length(value):,} bits; give one of at most {MAX_BITS:,}"
        )


def nearest(name: object, known: Iterable[str], aliases: Mapping[str, str] | None = None) -> str:
    """Return a hint at the known name closest to `name`, or an empty text.

    Parameters
    ----------
    name : object
        Name that the user gave.
    known : iterable of str
    aliases : mapping of str to str, optional
        Known names by their names in other libraries.

    Examples
    --------
    >>> nearest("lr", ["learning_rate", "momentum"], {"lr": "learning_rate"})
    "did you mean 'learning_rate'? "
    >>> nearest("x", ["learning_rate", "momentum"])
    ''
    """
    if not isinstance(name, str):
        return ""
    import difflib  # slow to import, and seldom needed

    close = difflib.get_close_matches(name.lower(), list(known), 1)
    found = (aliases or {}).get(name.lower()) or (close[0] if close else None)
    return f"did you mean {found!r}? " if found else ""


def check_known(
    what: str, given: object, known: Collection[str], aliases: Mapping[str, str] | None = None
) -> None:
    """Refuse a name that is not among the known ones; the error hints at the nearest.

    Parameters
    ----------
    what : str
        Name of the argument, or of the kind of thing; the message begins with it.
    given : object
    known : collection of str
    aliases : mapping of str to str, optional
        Known names by their names in other libraries.

    Raises
    ------
    UsageError
    """
    check_length(what, given)
    if not (isinstance(given, str) and given in known):
        wrong = "is unknown" if isinstance(given, str) else "is not a str"
        raise UsageError(
            f"{what} {given!r} {wrong}; {nearest(given, known, aliases)}"
            f"use one of {', '.join(known)}"
        )


def check_count(what: str, given: Any, minimum: int = 0, instead: str = "") -> int:
    """Return an integer of at least `minimum` as an int.

    Parameters
    ----------
    what : str
        Name of the argument; the message begins with it.
    given : Any
    minimum : int
    instead : str
        Advice that the message ends with.

    Raises
    ------
    UsageError
        For anything else, such as a float or a bool.
    """
    check_length(what, given)
    if isinstance(given, bool) or not (isinstance(given, (int, np.integer)) and given >= minimum):
        raise UsageError(f"{what}={given!r} is not an int of {minimum} or more; give one{instead}")
    return int(given)


def check_flag(what: str, given: Any) -> bool:
    """Return a bool; refuse anything else, such as an array, whose truth is ambiguous.

    Raises
    ------
    UsageError
    """
    check_length(what, given)
    if not isinstance(given, (bool, np.bool_)):
        raise UsageError(f"{what}={given!r} is not a bool; give True or False")
    return bool(given)


def known_arguments(
    what: str,
    more: Collection[str] = (),
    advice: Mapping[str, str] = MappingProxyType({}),
    /,
    **aliases: str,
) -> Callable[[Callable[P, Result]], Callable[P, Result]]:
    """Make a callable refuse unknown keyword arguments; the error names the nearest known one.

    Parameters
    ----------
    what : str
        Name of the callable in the user's program.
    more : collection of str
        Names of the arguments that the callable takes as ``**``.
    advice : mapping of str to str
        What replaces arguments of other libraries.
    **aliases : str
        Names of arguments by their names in other libraries.

    Raises
    ------
    UnknownArgument
        When the callable has no argument of a given name.

    Examples
    --------
    >>> @known_arguments("scale", factor="by")
    ... def scale(*, by: float = 1.0) -> float:
    ...     return by
    >>> scale(factor=2.0)
    Traceback (most recent call last):
        ...
    ncclkv.errors.UnknownArgument: scale has no argument 'factor'; did you mean 'by'? Valid: by
    """

    def decorate(call: Callable[P, Result]) -> Callable[P, Result]:
        taken = inspect.signature(call).parameters.values()
        named = [each.name for each in taken if each.kind is not inspect.Parameter.VAR_KEYWORD]
        names = [name for name in (*named, *more) if name != "self"]

        @functools.wraps(call)
        def checked(*args: P.args, **kwargs: P.kwargs) -> Result:
            for name in kwargs:
                if name not in names:
                    raise UnknownArgument(
                        f"{what} has no argument {name!r}; "
                        f"{advice.get(name) or nearest(name, names, aliases)}"
                        f"Valid: {', '.join(names)}"
                    )
            return call(*args, **kwargs)

        return public(checked)

    return decorate
