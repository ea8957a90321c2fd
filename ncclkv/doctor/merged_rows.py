"""Merged rows: the reports of all ranks as one list, with a row for each state of a thing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ncclkv.comm.diagnosis.reports import format_ranks
from ncclkv.doctor.rows import BLOCKS, LEVELS, WARNS, RankRows, Row

UNLIKE: Mapping[str, tuple[str, str]] = {
    "ncclkv": (BLOCKS, "install the same ncclkv on every host"),
    "MPI library": (BLOCKS, "use one Python environment, or one MPI, on every host"),
    "Python": (WARNS, "use the same Python on every host"),
    "NumPy": (WARNS, "install the same NumPy on every host"),
    "mpi4py": (WARNS, "install the same mpi4py on every host"),
    "torch": (WARNS, "install the same torch on every host"),
    "safetensors": (WARNS, "install the same safetensors on every host"),
    "ml_dtypes": (WARNS, "install the same ml_dtypes on every host"),
    "CuPy": (WARNS, "install the same CuPy on every host"),
    "NCCL": (WARNS, "install the same NCCL on every host"),
}
"""Level and mend of things that have another version on some ranks."""

MOVING = ("/dev/shm",)
"""Things whose state changes between the looks of two ranks of a host; the first look is shown."""


class Merged(NamedTuple):
    """A row, and the ranks that have it; empty if all ranks do, or for a row of no rank."""

    row: Row
    ranks: tuple[int, ...] = ()


def merge(reports: Sequence[RankRows], of: int | None = None) -> list[Merged]:
    """Return the rows of all reports: one for equal rows, in the order of the first report.

    Parameters
    ----------
    reports : sequence of RankRows
    of : int, optional
        Count of ranks that there are; by default that of the reports.
    """
    count = len(reports) if of is None else of
    things: dict[str, dict[Row, list[int]]] = {}
    first: dict[tuple[str, Row], Row] = {}
    for report in reports:
        for row in report.rows:
            if row.thing in MOVING:
                row = first.setdefault((report.host, row._replace(found="")), row)
            things.setdefault(row.thing, {}).setdefault(row, []).append(report.rank)
    merged = []
    for thing, groups in things.items():
        whole = len(groups) == 1 and len(next(iter(groups.values()))) == count
        unlike = _unlike(thing, groups) if thing in UNLIKE else {}
        for row, ranks in groups.items():
            merged.append(Merged(unlike.get(row, row), () if whole else tuple(ranks)))
    return merged


def _unlike(thing: str, groups: Mapping[Row, list[int]]) -> dict[Row, Row]:
    """Return the rows to show in place of a thing's rows, if its versions differ."""
    versions: dict[str, list[int]] = {}
    for row, ranks in groups.items():
        versions.setdefault(row.found, []).extend(ranks)
    if len(versions) == 1:
        return {}
    usual = max(versions, key=lambda found: len(versions[found]))
    level, mend = UNLIKE[thing]
    why = ", ".join(f"{found} on {format_ranks(sorted(at))}" for found, at in versions.items())
    return {
        row: row._replace(
            why="; ".join(filter(None, (row.why, f"versions differ: {why}"))),
            mend=row.mend or mend,
            level=max(row.level, level, key=LEVELS.index),
        )
        for row in groups
        if row.found != usual
    }
