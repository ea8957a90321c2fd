"""Wait outside any store, such as for a new MPI communicator.

The awaited ranks may wait for this rank in an open store: a deadlock.  The wait is therefore shown
on the pages of this thread's open stores, and their collectives are advanced during the wait.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import suppress

from ncclkv import concurrency
from ncclkv.comm.backoff import Backoff
from ncclkv.comm.diagnosis import crossing, dump, stall
from ncclkv.comm.diagnosis.looks import Looks
from ncclkv.comm.diagnosis.mismatch import CallComparison
from ncclkv.comm.diagnosis.reports import EVERYONE
from ncclkv.comm.messages.progress import ProgressEngine, open_progress_engines
from ncclkv.comm.transport import Transport

# A wait outside stores has no page of its own, by which ranks could agree on a rank that writes the
# line.  So the two lowest ranks write it: rank 0 may be the late rank.
_REPORTING_RANKS = 2

Awaited = Callable[[Transport], Sequence[int]]
"""Returns the ranks of a store's transport that the wait awaits."""


def poll_outside(
    description: str, awaited: Awaited, *, rank: int, size: int, limit: float, store: str = ""
) -> Generator[float, None, None]:
    """Yield the seconds waited before each poll of a wait outside any store, up to a limit.

    Parameters
    ----------
    description : str
        The call that waits.
    awaited : callable
        As `Awaited`.
    rank, size : int
        This rank among the awaited ranks and itself.
    limit : float
        Seconds that the wait may last.
    store : str
        The key of `crossing.creations` that counts such calls; empty without a key.

    Raises
    ------
    OrderMismatch
        When an awaited rank waits for this rank in an open store.
    """
    looks, lines = Looks(), 0
    try:
        for waited in Backoff(limit):
            yield waited
            engines = open_progress_engines(concurrency.get_ident())
            for progress in engines:
                # The next call of that store raises its failure.
                with suppress(Exception), progress.lock:
                    progress.advance()
            if looks.is_due(waited):
                looks = looks.next(waited)
                for progress in engines:
                    _show(progress, description, awaited, store)
            if stall.is_due(waited, limit, lines):
                lines = stall.lines_after(waited, limit)
                if rank < _REPORTING_RANKS:
                    missing = f"{description} waits for all ranks to call it"
                    stall.write_line(rank, size, missing, waited, limit, "")
    finally:
        if looks.made:
            for progress in open_progress_engines(concurrency.get_ident()):
                progress.calls.recorder.clear_other_wait()


def _show(progress: ProgressEngine, description: str, awaited: Awaited, store: str) -> None:
    """Show the wait in an open store; raise the difference that its reports show."""
    calls = progress.calls
    with progress.lock:
        names = _awaited_names(calls, awaited)
        progress.show_other_wait(description, names, store, crossing.creations[store])
        found = calls.compare_reports()
        if found is not None:
            progress.end(found)
            dump.write(found, calls, calls.transport.name)
            raise found


def _awaited_names(calls: CallComparison, awaited: Awaited) -> list[str]:
    """Return the `Report.name` of each awaited rank, or `EVERYONE`.

    An open store's reports have the names; a rank without a report is left out.
    """
    ranks = {*awaited(calls.transport)}
    if len(ranks) == calls.transport.size:
        return [EVERYONE]
    reports = map(calls.report, sorted(ranks))
    return [report.name for report in reports if report is not None]
