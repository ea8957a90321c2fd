"""Draws README's figure from tables of ``docs/performance.md``: steps, and a sum of one array.

The command is ``python -m bench.report.front_page docs/step-times.png``.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import NamedTuple

from bench.report.names import COLORS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "performance.md"

STEP = "push and pull of ResNet-50's 161 arrays on {}; the others copy into buckets and out"
RANKS = ("4 ranks", "2 ranks")
"""Panels of the step, by the rows of its table."""

SIZE = "1 MiB"
LIBRARIES = ("MPICH", "Open MPI", "Intel MPI", "Gloo")

STEPS_TABLE = re.compile(
    r"\| a step of ResNet-50 \| ncclkv \|(?P<names>[^\n]*)\n.*?(?=\n\n|\Z)", re.DOTALL
)
SUMS_TABLE = re.compile(
    r"Commit (?P<commit>\w+) on (?P<date>[\d-]+) \(2 ranks (?P<where>[^;)]*)[^)]*\):\n\n"
    r"\| 2 ranks \|(?P<names>[^\n]*)\n.*?(?=\n\n|\Z)",
    re.DOTALL,
)


class Panel(NamedTuple):
    """Bars of one piece of work.

    Attributes
    ----------
    title, where : str
        What was done, and the machine, the ranks, the commit and the date.
    times : dict of str to float
        Time of each library, in that of ncclkv.
    """

    title: str
    where: str
    times: dict[str, float]


def read(page: str) -> list[Panel]:
    """Return the panels of the step, and of the sums of 1 MiB."""
    steps, sums = STEPS_TABLE.search(page), SUMS_TABLE.search(page)
    if steps is None or sums is None:
        raise ValueError("docs/performance.md lacks the table of steps or that of sums")
    where = f"{sums['where']}; commit {sums['commit']}; {sums['date']}"
    panels = [
        Panel(STEP.format(ranks), f"{ranks} {where}", _times(steps, f"lists, {ranks}", 1))
        for ranks in RANKS
    ]
    title = f"a plain sum of an ordinary array of {SIZE}, in place"
    return [*panels, Panel(title, f"2 ranks {where}", _times(sums, SIZE, 0))]


def _times(table: re.Match[str], begin: str, skipped: int) -> dict[str, float]:
    """Return the time of each library in a row, in that of ncclkv.

    Parameters
    ----------
    table : Match
        It has the names of the columns after the first ones.
    begin : str
        The row's first cell.
    skipped : int
        Count of cells after the first without a name.
    """
    row = re.search(rf"^\| {begin} \|([^\n]*)", table[0], re.MULTILINE)
    if row is None:
        raise ValueError(f"docs/performance.md has no row {begin}")
    cells = [each.strip() for each in row[1].split("|")][skipped:]
    names = [each.strip() for each in table["names"].split("|")]
    ratios = dict(zip(names, cells, strict=True))
    # Of two settings of a library the faster one.
    return {
        "ncclkv": 1.0,
        **{name: 1 / max(map(float, ratios[name].split(","))) for name in LIBRARIES},
    }


def draw(panels: list[Panel], name: str) -> None:
    """Draw the panels below each other; shorter bars are better."""
    from matplotlib.figure import Figure

    heights = [0.9 + len(panel.times) for panel in panels]
    figure = Figure(figsize=(8, 0.42 * sum(heights) + 0.4), layout="constrained")
    grid = figure.subplots(len(panels), 1, sharex=True, height_ratios=heights)
    longest = max(max(panel.times.values()) for panel in panels)
    for axes, panel in zip(grid, panels, strict=True):
        colors = [COLORS[each] for each in panel.times]
        bars = axes.barh(list(panel.times), list(panel.times.values()), height=0.7, color=colors)
        axes.bar_label(bars, fmt="%.2f", padding=4, fontsize=9)
        axes.set_title(panel.title, loc="left", fontsize=10)
        axes.set_xlabel(panel.where, loc="right", fontsize=7, color="0.35")
        axes.set(xlim=(0, 1.12 * longest), ylim=(len(panel.times) - 0.4, -0.6))
        axes.spines[["top", "right"]].set_visible(False)
    figure.supxlabel("time, where that of ncclkv is 1; medians", fontsize=9)
    figure.savefig(name, dpi=110)


if __name__ == "__main__":
    draw(read(PAGE.read_text()), sys.argv[1])
