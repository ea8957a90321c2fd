"""Table of a report: rows as text of at most 79 columns, and as JSON."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Any

import ncclkv
from ncclkv.comm.diagnosis.reports import format_ranks
from ncclkv.doctor.merged_rows import Merged
from ncclkv.doctor.rows import BLOCKS, OK, WARNS

FORMAT = 1
"""Version of the form of the JSON, which ``schema.json`` beside this file describes."""

_WIDTH = 79
_WIDTHS = (6, 14, 25, 31)
_INDENT = " " * (_WIDTHS[0] + 1)
_MARKS = {OK: "ok", WARNS: "warns", BLOCKS: "BLOCKS"}


def text(merged: Sequence[Merged], about: str) -> str:
    """Return the table of rows, under a line about the job and above a line about the result."""
    lines = [f"ncclkv {ncclkv.__version__} doctor: {about}", ""]
    lines += _cells("", "thing", "found", "used")
    for each in merged:
        lines += _row(each)
    return "\n".join([*lines, "", _result(merged), ""])


def _row(merged: Merged) -> Iterator[str]:
    """Yield the lines of a row: its cells, then its reason and the command that mends it."""
    row = merged.row
    where = f" ({format_ranks(merged.ranks)})" if merged.ranks else ""
    yield from _cells(_MARKS[row.level], f"{row.thing}{where}", row.found, row.used)
    for name, words in (("why", row.why), ("mend", row.mend)):
        if words:
            yield from textwrap.wrap(
                f"{name:5}{words}",
                _WIDTH,
                initial_indent=_INDENT,
                subsequent_indent=f"{_INDENT}     ",
                break_long_words=False,
                break_on_hyphens=False,
            )


def _cells(*cells: str) -> Iterator[str]:
    """Yield the lines of cells side by side, each wrapped in its column."""
    columns = [
        textwrap.wrap(_breakable(cell, width), width, break_on_hyphens=False)
        for cell, width in zip(cells, _WIDTHS, strict=True)
    ]
    for parts in zip_longest(*columns, fillvalue=""):
        padded = (f"{part:{width}}" for part, width in zip(parts, _WIDTHS, strict=True))
        yield " ".join(padded).rstrip()


def _breakable(cell: str, width: int) -> str:
    """Return a cell whose long words have a blank where a line may end."""
    words = []
    for word in cell.split():
        while len(word) > width and (cut := _last(word, width)) > 0:
            words.append(word[: cut + 1])
            word = word[cut + 1 :]
        words.append(word)
    return " ".join(words)


def _last(word: str, width: int) -> int:
    """Return the position of the last sign that fits in a line and may end it; -1 without one."""
    return max(word.rfind(sign, 1, width) for sign in "/_=")


def _result(merged: Sequence[Merged]) -> str:
    """Return the last line: the count of rows that block, and of those that warn."""
    counts = {level: sum(each.row.level == level for each in merged) for level in (BLOCKS, WARNS)}
    blocking = f"{counts[BLOCKS]} row{'s' * (counts[BLOCKS] > 1)}"
    first = f"{blocking} must be mended first" if counts[BLOCKS] else "nothing blocks"
    warned = f"{counts[WARNS]} warning{'s' * (counts[WARNS] != 1)}"
    return f"{first}; {warned}."


def blocks(merged: Sequence[Merged]) -> bool:
    """Return whether any row blocks."""
    return any(each.row.level == BLOCKS for each in merged)


def json_object(merged: Sequence[Merged], about: str, size: int) -> dict[str, Any]:
    """Return the rows as an object of JSON."""
    return {
        "format": FORMAT,
        "ncclkv": ncclkv.__version__,
        "about": about,
        "ranks": size,
        "blocks": blocks(merged),
        "rows": [{**each.row._asdict(), "ranks": list(each.ranks)} for each in merged],
    }
