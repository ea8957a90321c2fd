"""Draws README's figure from the newest table of rows in ``docs/performance.md``.

The command is ``python -m bench.report.front_page docs/step-times.png``.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "performance.md"

TITLES = {
    "1": "allreduce of 64 MiB float32 (ncclkv: one result, which all ranks of the host read)",
    "2": "push and pull of ResNet-50's gradients (161 arrays, 97.5 MiB)",
    "4": "the same with SGD and momentum on the store",
}
"""Titles of the panels, by the rows of the table."""

COLORS = {"ncclkv": "C0", "MPI": "C7", "Gloo": "C1"}

Rows = dict[str, dict[str, float]]
"""Milliseconds of each library, by row."""


def read(page: str) -> tuple[str, Rows]:
    """Return commit, date and machine of the table "ours, beside, ratio", and its rows."""
    found = re.search(r"(Commit [^\n]*)\n\n\| \| ours \| beside .*?(?:\n\n|\Z)", page, re.DOTALL)
    if found is None:
        raise ValueError("docs/performance.md has no table with the columns ours and beside")
    rows: Rows = {}
    for number, ours, beside in re.findall(
        r"^\| (\d+) \| ([\d.]+)[^|]*\| ([^|]*) \|", found[0], re.MULTILINE
    ):
        others = re.findall(r"([A-Z]\w+) ([\d.]+)", beside)
        rows[number] = {"ncclkv": float(ours), **{name: float(time) for name, time in others}}
    where = re.match(r"Commit (\w+)[^(]*\(([^)]*)\)", found[1])
    return f"commit {where[1]}, {where[2]}" if where else found[1], rows


def draw(about: str, rows: Rows, name: str) -> None:
    """Draw a panel of bars for each row that has a title; shorter bars are better."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.2), layout="constrained")
    heights = [len(rows[number]) for number in TITLES]
    panels = figure.subplots(len(TITLES), 1, sharex=True, height_ratios=heights)
    longest = max(max(rows[number].values()) for number in TITLES)
    for axes, (number, title) in zip(panels, TITLES.items(), strict=True):
        libraries = list(rows[number])
        times = list(rows[number].values())
        bars = axes.barh(libraries, times, color=[COLORS[each] for each in libraries])
        axes.bar_label(bars, fmt="%.0f ms", padding=4)
        axes.set_title(title, loc="left", fontsize=10)
        axes.set_xlim(0, 1.12 * longest)
        axes.invert_yaxis()
        axes.spines[["top", "right"]].set_visible(False)
    panels[-1].set_xlabel(f"milliseconds, median; 4 ranks; {about}")
    figure.savefig(name, dpi=110)


if __name__ == "__main__":
    draw(*read(PAGE.read_text()), sys.argv[1])
