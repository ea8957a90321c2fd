"""Pictures by matplotlib, if it is installed: bandwidth over size, steps, memory over ranks.

A colour stands for one library, or for the store, in all pictures.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.report.machine import place
from bench.report.names import PLACEMENTS, color, labelled
from bench.report.units import size_text

Record = dict[str, Any]

LEGIBLE = 0.09
"""Width of a bar's part, in that of the axes, in which its name can be read."""


def draw(base: Path, record: Record) -> list[str]:
    """Draw the plots of a record; return file names, or the reason why there are none."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return ["no plots: matplotlib is not installed (pip install 'ncclkv[plot]')"]

    made: list[tuple[str, Figure]] = []
    if record.get("sizes"):
        made.append(("bandwidth", _bandwidth(Figure, record)))
    steps = [each for each in record.get("tables", []) if _phased(each)]
    if steps:
        made.append(("steps", _steps(Figure, record, steps)))
    if record.get("memory"):
        made.append(("memory", _memory(Figure, record["memory"])))
    names = []
    for name, figure in made:
        figure.supxlabel(conditions(record), x=0.99, ha="right", fontsize=7, color="0.35")
        figure.savefig(f"{base}-{name}.png", dpi=120)
        names.append(f"{base}-{name}.png")
    return names


def conditions(record: Mapping[str, Any]) -> str:
    """Return machine, ranks, commit and date in one line."""
    return f"{place(record)}; commit {record['commit']}; {record['date']}"


def _bandwidth(make: Any, record: Record) -> Any:
    """Plot the bandwidth of every candidate over size; a band reaches from least to most."""
    figure = make(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    rows, ranks = record["sizes"], record["ranks"]
    sizes = [row["bytes"] for row in rows]
    # On one rank no byte crosses a bus.
    factor = 2 * (ranks - 1) / ranks if ranks > 1 else 1
    kind = "bus bandwidth" if ranks > 1 else "algorithm bandwidth"
    for candidate in rows[0]["median"]:
        if candidate == "copy":
            continue
        middle, high, low = (
            [factor * row["bytes"] / row[which][candidate] / 1e9 for row in rows]
            for which in ("median", "least", "most")
        )
        shade = color(candidate, record["libraries"])
        name = labelled(candidate, record["libraries"])
        axes.plot(sizes, middle, marker="o", markersize=3.5, color=shade, label=name)
        axes.fill_between(sizes, low, high, color=shade, alpha=0.18, linewidth=0)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    shown = sizes[:: max(1, len(sizes) // 8)]
    axes.set_xticks(shown, [size_text(each) for each in shown])
    axes.minorticks_off()
    axes.set(ylabel=f"{kind}, GB/s", title="allreduce in place: median, and least to most")
    axes.grid(alpha=0.3)
    axes.legend()
    return figure


def _phased(table: Record) -> bool:
    """Return whether a table has steps of more than one phase."""
    return any(len(each["phases"]) > 2 for each in table["results"])


def _steps(make: Any, record: Record, tables: list[Record]) -> Any:
    """Draw a bar for the median of each candidate, cut at its phases."""
    columns = 1 if len(tables) < 3 else 2
    rows = [tables[first : first + columns] for first in range(0, len(tables), columns)]
    heights = [1.3 + 0.36 * max(len(table["results"]) for table in row) for row in rows]
    size = (8.5 * columns, sum(heights) + 0.3)
    figure = make(figsize=size, layout="constrained")
    grid = figure.subplots(len(rows), columns, squeeze=False, height_ratios=heights)
    for axes in grid.flat[len(tables) :]:
        axes.remove()
    for axes, table in zip(grid.flat, tables, strict=False):
        results = table["results"]
        longest = max(max(each["seconds"]) for each in results) * 1e3
        for index, each in enumerate(results):
            _bar(axes, index, each, color(each["name"], record["libraries"]), longest)
        names = [labelled(each["name"], record["libraries"]) for each in results]
        axes.set_yticks(range(len(results)), names)
        axes.set(xlabel="ms, median; the line reaches from least to most", xlim=(0, 1.05 * longest))
        axes.set_ylim(len(results) - 0.4, -0.6)
        axes.set_title(table["title"], loc="left", fontsize=10)
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def _bar(axes: Any, index: int, result: Record, shade: str, longest: float) -> None:
    """Draw the median of one candidate, with its phases inside it."""
    times = [1e3 * each for each in result["seconds"]]
    median = statistics.median(times)
    phases = {name: statistics.median(each) for name, each in result["phases"].items()}
    # Phases are means over the ranks; the median lasts to the end of the last rank.
    scale, left = median / sum(phases.values()), 0.0
    for phase, (name, seconds) in enumerate(phases.items()):
        width = seconds * scale
        faint = phase % 2 == 1
        alpha, ink = (0.6, "black") if faint else (1.0, "white")
        axes.barh(index, width, left=left, height=0.72, color=shade, alpha=alpha, edgecolor="white")
        if name != "all" and width > LEGIBLE * longest:
            middle = (left + width / 2, index - 0.06)
            axes.annotate(name, middle, ha="center", va="center", fontsize=7, color=ink)
        left += width
    axes.errorbar(
        median, index + 0.26, xerr=[[median - min(times)], [max(times) - median]],
        fmt="none", color="black", capsize=3, linewidth=1,
    )  # fmt: skip


def _memory(make: Any, rows: list[Record]) -> Any:
    """Plot a store's memory on a rank, and on all ranks, over the count of ranks."""
    figure = make(figsize=(10, 4.5), layout="constrained")
    grid = figure.subplots(1, 2)
    stores = list(dict.fromkeys(row["name"] for row in rows))
    for axes, column, title in zip(grid, ("rank", "total"), ("a rank", "all ranks"), strict=True):
        for marker, shade, store in zip("osx+", PLACEMENTS, stores, strict=False):
            points = [(row["ranks"], row[column]) for row in rows if row["name"] == store]
            ranks, nbytes = zip(*points, strict=True)
            # Lines of two stores may lie on each other.
            line = "--" if "sharded" in store else "-"
            sizes = [each / 2**20 for each in nbytes]
            axes.plot(ranks, sizes, line, marker=marker, color=shade, label=store)
        axes.set(xlabel="ranks", ylabel="MiB", title=f"memory of {title}", xticks=ranks)
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
    grid[0].legend(loc="lower left")
    return figure
