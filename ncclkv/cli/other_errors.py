"""Errors of the ranks that a report does not begin with: each text once, for all its ranks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from ncclkv.cli.outcome import Rank
from ncclkv.comm.diagnosis.reports import format_ranks

_MOST_LINES = 8
"""Lines of a report about the other ranks; their whole output stands above the report."""

_WAITS = " has waited "
"""Words of the lines that a rank prints before the deadline; its error says the same at the end."""

_ABOUT_A_RANK = re.compile(r"ncclkv: (a )?rank\b")
"""Begin of an error; ncclkv's other lines, such as that a store is in host memory, are none."""

_SECONDS = re.compile(r"\b\d+(\.\d+)? s\b")


def describe(ranks: Iterable[Rank]) -> list[str]:
    """Return the lines of a report about the errors of `ranks`."""
    alike: dict[str, list[tuple[Rank, str]]] = {}
    for rank in ranks:
        for line in rank.errors:
            if _ABOUT_A_RANK.match(line) and _WAITS not in line:
                alike.setdefault(_SECONDS.sub("", _without_rank(rank, line)), []).append(
                    (rank, line)
                )
    lines = [*_format(alike.values())]
    left_out = len(lines) - _MOST_LINES
    return lines if left_out <= 1 else [*lines[:_MOST_LINES], f"  and {left_out} more lines"]


def _format(groups: Iterable[list[tuple[Rank, str]]]) -> Iterator[str]:
    """Yield a line for each group of equal errors."""
    for group in groups:
        rank, line = group[0]
        indices = {each.index for each, _ in group}
        if len(indices) == 1:
            yield f"  [{rank.index}] {line}"
        else:
            yield f"  {format_ranks(indices)}: {_without_rank(rank, line)}"


def _without_rank(rank: Rank, line: str) -> str:
    """Return a rank's line in words that other ranks may use, too."""
    index = rank.index
    line = re.sub(rf"^ncclkv: rank {index}( of \d+)?( on \S+ \(pid \d+\))? ", "", line)
    line = re.sub(rf"\brank {index} of \d+: ", "", line)
    return re.sub(rf"\brank {index}\b", "this rank", line)
