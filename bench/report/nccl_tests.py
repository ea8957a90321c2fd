"""Tables in the format of nccl-tests, to be compared with nccl-tests' own.

Widths, header and footer are those of nccl-tests 2.19; the bandwidths are in 10^9 bytes a second.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Cell:
    """One measurement: microseconds, bandwidths in GB/s, and wrong elements over all ranks."""

    time: float
    algbw: float
    busbw: float
    wrong: int


@dataclass(frozen=True)
class Row:
    """One row: bytes of the whole array, elements, and the measurements."""

    size: int
    count: int
    redop: str
    root: int
    out_of_place: Cell | None
    in_place: Cell | None
    iterations: int


def cell(seconds: float, size: int, factor: float, wrong: int) -> Cell:
    """Return a measurement of `seconds`; `factor` is bus over algorithm bandwidth."""
    algbw = size / seconds / 1e9
    return Cell(seconds * 1e6, algbw, algbw * factor, wrong)


def format_number(value: float, width: int) -> str:
    """Format a number in at most `width` characters, with up to 2 decimals.

    Examples
    --------
    >>> [format_number(value, 7) for value in (0.0, 13.714, 12345.6, 123456.7, 12345678.9)]
    ['   0.00', '  13.71', '12345.6', ' 123457', '1.2e+07']
    """
    power, bound = 0, 1
    while value >= bound:
        power, bound = power + 1, bound * 10
    if power < width - 2:
        return f"{value:{width}.2f}"
    if power < width - 1:
        return f"{value:{width}.1f}"
    if power < width + 1:
        return f"{value:{width}.0f}"
    return f"{value:{width}.1e}" if width >= 7 else f"{value:{width}.0e}"


def preamble(
    name: str,
    backend: str,
    sizes: Sequence[int],
    factor: int,
    iterations: int,
    devices: Sequence[str],
) -> list[str]:
    """Return the lines before the table; `backend` stands where nccl-tests has its version."""
    return [
        f"# {backend}",
        f"# Collective test starting: {name}",
        f"# nThread 1 nGpus 1 minBytes {sizes[0]} maxBytes {sizes[-1]} step: {factor}(factor) "
        f"warmup iters: 1 iters: {iterations} agg iters: 1 validation: 1 graph: 0 unalign: 0",
        "#",
        "# Using devices",
        *devices,
        "#",
        *_heading(),
    ]


def _heading() -> list[str]:
    """Return the three lines over the columns."""
    left = f"# {'':>10}  {'':>12}  {'':>8}  {'':>6}  {'':>6}"
    titles = ("time", "algbw", "busbw", "#wrong")
    units = ("(us)", "(GB/s)", "(GB/s)", "")
    half = "  {:>7}  {:>6}  {:>6}  {:>6}".format
    return [
        f"{left}           out-of-place                       in-place          ",
        f"# {'size':>10}  {'count':>12}  {'type':>8}  {'redop':>6}  {'root':>6}"
        f"{half(*titles)}{half(*titles)}",
        f"# {'(B)':>10}  {'(elements)':>12}  {'':>8}  {'':>6}  {'':>6}{half(*units)}{half(*units)}",
    ]


def line(row: Row) -> str:
    """Format a row of the table."""
    left = f"{row.size:12d}  {row.count:12d}  {'float':>8}  {row.redop:>6}  {row.root:6d}"
    return left + _body(row.out_of_place) + _body(row.in_place)


def _body(found: Cell | None) -> str:
    """Format the columns of one measurement."""
    if found is None:
        return f"  {'N/A':>7}  {'N/A':>6}  {'N/A':>6}  {'N/A':>6}"
    speeds = f"  {format_number(found.algbw, 6)}  {format_number(found.busbw, 6)}"
    return f"  {format_number(found.time, 7)}{speeds}  {found.wrong:>6g}"


def average(rows: Sequence[Row]) -> float:
    """Return the mean bus bandwidth over all rows and both halves."""
    cells = [each for row in rows for each in (row.out_of_place, row.in_place) if each]
    return sum(each.busbw for each in cells) / max(1, len(cells))


def wrong(rows: Sequence[Row]) -> int:
    """Return the count of wrong elements in all rows."""
    return sum(each.wrong for row in rows for each in (row.out_of_place, row.in_place) if each)


def footer(name: str, rows: Sequence[Row]) -> list[str]:
    """Return the lines after the table."""
    bad = wrong(rows)
    return [
        f"# {'Out of bounds values':<20} : {bad} {'FAILED' if bad else 'OK'}",
        f"# {'Avg bus bandwidth':<20} : {average(rows):g} ",
        "#",
        f"# Collective test concluded: {name}",
        "",
    ]


def as_json(row: Row, name: str) -> dict[str, Any]:
    """Return a row as JSON with nccl-tests' names."""
    return {
        "size": row.size,
        "count": row.count,
        "type": "float",
        "redop": row.redop,
        "root": str(row.root),
        "out_of_place": _cell_json(row.out_of_place),
        "in_place": _cell_json(row.in_place),
        "actual_iterations": row.iterations,
        "experiment_name": name,
    }


def _cell_json(found: Cell | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {
        "time": found.time,
        "alg_bw": found.algbw,
        "bus_bw": found.busbw,
        "nwrong": found.wrong,
    }
