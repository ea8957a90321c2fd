"""Ranks now: the table of a running job's ranks, with the last call and the wait of each."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Sequence

import numpy as np

from ncclkv import concurrency, notify
from ncclkv.cli.outcome import Rank
from ncclkv.cli.rank_pages import PageAddress
from ncclkv.comm.diagnosis.flight_recorder import NBYTES, FlightRecorder
from ncclkv.comm.diagnosis.reports import Report, format_ranks
from ncclkv.system.processes import how

_SHOWN_SECONDS = 2.0
"""A wait that its rank has not shown for longer is over: ranks show it four times a second."""

_AWAITED = 4
"""Count of awaited ranks that are named."""

_HERE = -1
"""The runner among the owners of pages."""

_EMPTY = np.zeros(NBYTES, np.uint8)

_COLUMNS = ("rank", "host", "pid", "state", "last call", "ago", "waits for")
_TO_THE_RIGHT = {"rank", "pid", "ago"}
"""Columns that end at the right."""


def reports(
    rank: int, clock: int, addresses: Iterable[PageAddress], pages: Iterable[bytes]
) -> list[Report]:
    """Return the reports of a rank's open stores, the one with the newest call first.

    Parameters
    ----------
    rank : int
    clock : int
        The monotonic clock of the rank's host, in nanoseconds, when the pages were read.
    addresses : iterable of PageAddress
    pages : iterable of bytes
        Empty for a page that could not be read.
    """
    found = []
    for address, page in zip(addresses, pages, strict=False):
        if len(page) != NBYTES:
            continue
        recorder = FlightRecorder(_HERE, {_HERE: _EMPTY, rank: np.frombuffer(page, np.uint8)})
        ahead = (clock - concurrency.monotonic_ns()) / 1e9
        report = recorder.read(rank, 1)
        # The memory of a closed store may hold something else by now.
        if f"(pid {address.pid})" in report.label and not recorder.is_closing(rank):
            found.append(report.aged(ahead))
    return sorted(found, key=lambda each: each.calls[-1].age if each.calls else np.inf)


def table(ranks: Sequence[Rank], known: dict[int, list[Report]]) -> str:
    """Return the table of ranks; a rank without an entry in `known` has not answered."""
    rows = [_COLUMNS, *(_row(rank, known.get(rank.index)) for rank in ranks)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_COLUMNS))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if name in _TO_THE_RIGHT else cell.ljust(width)
            for cell, width, name in zip(row, widths, _COLUMNS, strict=True)
        ).rstrip()
        for row in rows
    )


def _row(rank: Rank, found: list[Report] | None) -> tuple[str, ...]:
    """Return the cells of a rank."""
    name = str(rank.index), rank.host or rank.place, str(rank.pid or "")
    if not rank.began:
        return (*name, "not begun", "", "", "")
    if rank.over:
        return (*name, "" if rank.code is None else how(rank.code), "", "", "")
    if rank.stopped is not None:
        state = f"stopped by {signal.Signals(rank.stopped[0]).name}"
    elif found is None:
        state = "its supervisor does not answer"
    elif rank.mpi == notify.MPI_BEGINS:
        state = "in MPI's start"
    else:
        state = "runs"
    report = found[0] if found else None
    if report is None or not report.calls:
        return (*name, state, "no call of a store of several ranks" if found == [] else "", "", "")
    call = report.calls[-1]
    awaited = _awaited(found or [])
    if awaited and state == "runs":
        state = "waits"
    return (*name, state, call.text, f"{call.age:.1f} s", awaited)


def _awaited(found: Iterable[Report]) -> str:
    """Describe the ranks that a rank waits for now; empty if it shows no wait."""
    for report in found:
        wait = report.wait
        if wait is not None and wait.age < _SHOWN_SECONDS:
            more = " and more" if wait.total > len(wait.ranks) else ""
            return f"{format_ranks(wait.ranks, _AWAITED)}{more}"
    return ""
