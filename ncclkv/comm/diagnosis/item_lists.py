"""Items of a call's list as a short text, and the first item in which two lists differ.

Each line has a count and an item, which the list has so many times in a row.  A list that is too
long ends with the line ``...``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import groupby, repeat, zip_longest

_BYTES = 2000
_CUT = "..."
_LINE = re.compile(r"([0-9]{1,7}) (.+)")


def write(items: Iterable[str]) -> str:
    r"""Return the text of a list, at most about 2,000 bytes.

    Examples
    --------
    >>> write(["int64 ()", "int64 ()", "float32 (2,)"])
    '2 int64 ()\n1 float32 (2,)'
    """
    lines: list[str] = []
    held = 0
    for item, same in groupby(items):
        line = f"{sum(1 for _ in same)} {item}"
        held += len(line) + 1
        if held > _BYTES:
            lines.append(_CUT)
            break
        lines.append(line)
    return "\n".join(lines)


def describe_difference(first: str, second: str, ranks: tuple[int, int]) -> str:
    r"""Describe the first item in which the lists of two ranks differ; "" if none is found.

    Examples
    --------
    >>> describe_difference("3 int64 ()", "2 int64 ()\n1 float32 ()", (0, 5))
    'item 2 of the list is int64 () on rank 0, and float32 () on rank 5'
    """
    for index, items in enumerate(zip_longest(_items(first), _items(second), fillvalue="missing")):
        mine, theirs = items
        if _CUT in items:
            return f"the first {index} items of the lists are equal" if index else ""
        if mine != theirs:
            return (
                f"item {index} of the list is {mine} on rank {ranks[0]}, and {theirs} on rank "
                f"{ranks[1]}"
            )
    return ""


def _items(text: str) -> Iterator[str]:
    """Yield the items of a list; a line that its rank may be overwriting ends the list."""
    for line in text.splitlines():
        found = _LINE.fullmatch(line)
        if found is None:
            yield _CUT
            return
        yield from repeat(found[2], int(found[1]))
