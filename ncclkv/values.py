"""Parse environment variables as numbers and choices; a wrong value is a `LaunchError`."""

from __future__ import annotations

from ncclkv.errors import LaunchError

LONGEST = 3e9
"""Longest wait in seconds, about a century: more does not fit the clock."""

# More digits than any count has, and fewer than Python refuses to convert.
_MOST_DIGITS = 18


def number(text: str) -> int | None:
    """Return a whole number, or None if the text is no whole number.

    Examples
    --------
    >>> number("12"), number("")
    (12, None)
    """
    return int(text) if text.isdecimal() and len(text) <= _MOST_DIGITS else None


def whole(name: str, text: str, least: int) -> int | None:
    """Return a whole number of at least `least`; None for an empty text.

    Raises
    ------
    LaunchError
        For any other text.
    """
    found = number(text)
    if text and (found is None or found < least):
        raise LaunchError(
            f"{name}={text!r} is not a whole number of at least {least}; set one, or unset it"
        )
    return found


def seconds(name: str, text: str, unset: str = "") -> float | None:
    """Return a number of seconds above 0; None for an empty text.

    Parameters
    ----------
    name, text, unset : str
        Variable, its value, and the effect of unsetting it, for the message.

    Raises
    ------
    LaunchError
        For any other text.
    """
    if not text:
        return None
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0 < found <= LONGEST:
        raise LaunchError(
            f"{name}={text!r} is not a number of seconds; set one above 0, or unset it{unset}"
        )
    return found


def check_pair(name: str, text: str, one: str, other: str) -> None:
    """Refuse a text other than two values or an empty text."""
    if text not in ("", one, other):
        neither = f"{name}={text!r} is neither {one} nor {other}"
        raise LaunchError(f"{neither}; set one of these, or unset it")
