"""Plots by matplotlib, if it is installed: bandwidth over size, steps by phase, memory by ranks."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any


def draw(base: Path, record: dict[str, Any]) -> list[str]:
    """Draw the plots of a record; return file names, or the reason why there are none."""
    try:
        import matplotlib
    except ImportError:
        return ["no plots: matplotlib is not installed (pip install 'ncclkv[plot]')"]
    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = []
    if record.get("sizes"):
        names.append(_bandwidth(pyplot, f"{base}-bandwidth.png", record["sizes"]))
    steps = [each for each in record.get("tables", []) if _phased(each)]
    if steps:
        names.append(_steps(pyplot, f"{base}-steps.png", steps))
    if record.get("memory"):
        names.append(_memory(pyplot, f"{base}-memory.png", record["memory"]))
    return names


def _bandwidth(pyplot: Any, name: str, rows: list[dict[str, Any]]) -> str:
    """Plot the algorithm bandwidth of every candidate over size, both axes logarithmic."""
    figure, axes = pyplot.subplots(figsize=(8, 5), layout="constrained")
    for candidate in rows[0]["median"]:
        sizes = [row["bytes"] for row in rows]
        speeds = [row["bytes"] / row["median"][candidate] / 1e9 for row in rows]
        axes.loglog(sizes, speeds, marker="o", label=candidate)
    axes.set(xlabel="bytes", ylabel="algorithm bandwidth, GB/s", title="allreduce, out of place")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(name, dpi=120)
    pyplot.close(figure)
    return name


def _phased(table: dict[str, Any]) -> bool:
    """Return whether a table has steps of more than one phase."""
    return any(len(each["phases"]) > 2 for each in table["results"])


def _steps(pyplot: Any, name: str, tables: list[dict[str, Any]]) -> str:
    """Draw bars of each table's candidates, cut at their phases."""
    figure, grid = pyplot.subplots(
        len(tables), 1, figsize=(9, 3.5 * len(tables)), squeeze=False, layout="constrained"
    )
    phases = {
        name: None for table in tables for each in table["results"] for name in each["phases"]
    }
    colors = {name: f"C{number}" for number, name in enumerate(phases)}
    for axes, table in zip(grid[:, 0], tables, strict=True):
        shown: set[str] = set()
        for index, each in enumerate(reversed(table["results"])):
            left = 0.0
            for phase, seconds in each["phases"].items():
                width = statistics.median(seconds) * 1e3
                label = None if phase in shown else phase
                axes.barh(index, width, left=left, color=colors[phase], label=label)
                shown.add(phase)
                left += width
        axes.set_yticks(range(len(table["results"])))
        axes.set_yticklabels([each["name"] for each in reversed(table["results"])])
        axes.set(xlabel="ms", title=table["title"])
        axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    figure.savefig(name, dpi=120)
    pyplot.close(figure)
    return name


def _memory(pyplot: Any, name: str, rows: list[dict[str, Any]]) -> str:
    """Plot a store's memory on a rank, and on all ranks, over the number of ranks."""
    figure, grid = pyplot.subplots(1, 2, figsize=(10, 4.5), layout="constrained")
    for axes, column, title in zip(grid, ("rank", "total"), ("a rank", "all ranks"), strict=True):
        for marker, store in zip("osx+", dict.fromkeys(row["name"] for row in rows), strict=False):
            points = [(row["ranks"], row[column]) for row in rows if row["name"] == store]
            ranks, nbytes = zip(*points, strict=True)
            # Lines of two stores may lie on each other.
            line = "--" if "sharded" in store else "-"
            axes.plot(ranks, [each / 2**20 for each in nbytes], line, marker=marker, label=store)
        axes.set(xlabel="ranks", ylabel="MiB", title=f"memory of {title}", xticks=ranks)
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
    grid[0].legend(loc="lower left")
    figure.savefig(name, dpi=120)
    pyplot.close(figure)
    return name
