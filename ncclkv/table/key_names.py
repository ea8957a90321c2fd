"""Names of keys in texts."""

from __future__ import annotations

from collections.abc import Sequence
from reprlib import repr as shortened
from typing import Any

SHOWN = 3
"""Keys that a text names; further keys are counted."""


def listed(keys: Sequence[Any], length: int | None = None) -> str:
    """Return a text that names the first of some keys, and counts the others.

    Parameters
    ----------
    keys : sequence of keys
        All keys, or the first of them.
    length : int, optional
        The count of all keys.

    Examples
    --------
    >>> listed(["a", "b"]), listed(range(2000))
    ("'a', 'b'", '0, 1, 2 and 1,997 more')
    """
    names = ", ".join(map(shortened, keys[:SHOWN]))
    more = (len(keys) if length is None else length) - SHOWN
    return f"{names} and {more:,} more" if more > 0 else names
