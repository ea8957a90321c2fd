"""Rows of the table: a thing, its state, and the command that mends it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

OK, WARNS, BLOCKS = LEVELS = ("ok", "warns", "blocks")
"""Levels of a row: nothing to do; something is slower or unusual; jobs cannot run."""

# An error's text ends with the commands that help.
_ADVICE = re.compile(
    r"; (?=(?:or, )?(?:type|set|unset|load|pip|with one|install|give|raise|make|reduce|see)\b)"
    r"|\. (?=Load your)"
)


class Row(NamedTuple):
    """A row about one thing.

    Attributes
    ----------
    thing : str
        Its name, which is unique in the rows of a rank.
    found : str
    used : str
        The part of ncclkv's work that the thing has; empty if `found` tells as much.
    why : str
        The reason for its use, or for the level; may be empty.
    mend : str
        Command or change that helps; empty for a row that is fine.
    level : str
        One of `LEVELS`.
    """

    thing: str
    found: str
    used: str = ""
    why: str = ""
    mend: str = ""
    level: str = OK


class RankRows(NamedTuple):
    """The rows of one rank, or of a process that is no rank."""

    rank: int
    host: str
    rows: Sequence[Row]


def refused(thing: str, error: object, level: str = BLOCKS, found: str = "") -> Row:
    """Return the row of an error, whose text ends with the commands that help.

    Examples
    --------
    >>> row = refused("variable", "X='a' is no number; set one above 0, or unset it")
    >>> row.why, row.mend
    ("X='a' is no number", 'set one above 0, or unset it')
    """
    why, *advice = _ADVICE.split(" ".join(str(error).split()), maxsplit=1)
    mend = "; ".join(advice).removeprefix("type: ")
    return Row(thing, found or "refused", "", why, mend, level)


def to_json(report: RankRows) -> dict[str, Any]:
    """Return a report as an object of JSON."""
    return {**report._asdict(), "rows": [row._asdict() for row in report.rows]}


def from_json(read: Mapping[str, Any]) -> RankRows:
    """Return the report that `to_json` has written."""
    return RankRows(read["rank"], read["host"], [Row(**each) for each in read["rows"]])
