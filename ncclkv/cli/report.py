"""Report of a failed job, as text."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Iterator

from ncclkv import notify
from ncclkv.cli.outcome import Outcome, Rank, never_started

_CAUSES = {
    signal.SIGKILL: "often the kernel's out-of-memory killer: dmesg tells",
    signal.SIGBUS: "often shared memory that is full: df /dev/shm tells",
    signal.SIGSEGV: "a crash in compiled code",
    signal.SIGTERM: "somebody, or a batch system, asked it to end",
}


def how(code: int) -> str:
    """Describe the end of a process.

    Examples
    --------
    >>> how(3)
    'ended with exit code 3'
    >>> how(-11)
    'was killed by SIGSEGV (a crash in compiled code)'
    """
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        name = signal.Signals(-code)
    except ValueError:
        return f"was killed by signal {-code}"
    cause = _CAUSES.get(name)
    return f"was killed by {name.name}" + (f" ({cause})" if cause else "")


def report(outcome: Outcome, attempt: str) -> str:
    """Describe a failed job: the first failed rank, its last lines, and the others' errors.

    Parameters
    ----------
    outcome : Outcome
    attempt : str
        The number of the start, such as ``"start 2 of 3"``.
    """
    begin = f"ncclkv run: the job failed after {outcome.seconds:.1f} s ({attempt}): "
    first = _culprit(outcome)
    if first is None:
        return "\n".join([begin + _of_launcher(outcome), *outcome.words]) + "\n"
    lines = [begin + _of_first(first, outcome)]
    if first.last:
        lines += ["its last lines of stderr:"]
        lines += [f"  [{first.number}] {line}" for line in first.last]
    lines += _of_silent(outcome, first)
    said = [
        f"  [{each.number}] {line}"
        for each in outcome.ranks.values()
        for line in each.said
        if each is not first
    ]
    lines += ["the other ranks said:", *said] if said else []
    if len(lines) > 2:  # the cause is the last line on a terminal, too
        lines.append(f"ncclkv run: {_of_first(first, outcome)}")
    return "\n".join(lines) + "\n"


def _culprit(outcome: Outcome) -> Rank | None:
    """Return the rank that the report begins with."""
    first = outcome.first
    missing = never_started(outcome.ranks.values())
    if missing and (first is None or first.mpi == notify.MPI_BEGINS):
        return missing[0]
    return outcome.left or first


def _of_first(rank: Rank, outcome: Outcome) -> str:
    """Describe the end of the rank that the report begins with."""
    end = f"{how(rank.code)}, {rank.ended:.1f} s after the start" if rank.code is not None else ""
    waiting = [each for each in outcome.ranks.values() if each.mpi == notify.MPI_BEGINS]
    if rank in never_started(outcome.ranks.values()):
        ended = f": it {end}" if end else ""
        return f"{rank} never came to MPI's start, where {_named(waiting)} waited for it{ended}"
    if rank is outcome.left:
        return f"{rank} {end}, while {_named(outcome.unreported)} had not ended"
    return f"{rank} failed: {rank.reason}" if rank.reason else f"{rank} {end}"


def _named(ranks: Iterable[Rank]) -> str:
    """List the numbers of ranks.

    Examples
    --------
    >>> _named([Rank(0), Rank(2), Rank(3)])
    'ranks 0, 2 and 3'
    """
    *others, last = [str(rank.number) for rank in ranks]
    return f"ranks {', '.join(others)} and {last}" if others else f"rank {last}"


def _of_launcher(outcome: Outcome) -> str:
    """Describe the end of the launcher, when no rank is known to have failed."""
    ranks = outcome.ranks.values()
    begun = "" if any(rank.began for rank in ranks) else ", before any rank began"
    unreported = outcome.unreported
    missing = f"; {_named(unreported)} did not report an end" if unreported else ""
    said = "; it said:" if outcome.words else " and said nothing"
    return f"its launcher {how(outcome.launcher)}{begun}{missing}{said}"


def _of_silent(outcome: Outcome, first: Rank) -> Iterator[str]:
    """Describe stopped and ended ranks that the others may have waited for."""
    for rank in outcome.ranks.values():
        if rank.stopped is not None:
            number, since = rank.stopped
            name = signal.Signals(number).name
            yield f"{rank} was stopped by {name} {since:.1f} s after the start, and did not go on"
        if rank.code == 0 and rank is not first and rank.ended < (first.failed() or 0.0):
            yield f"{rank} had ended with exit code 0, {rank.ended:.1f} s after the start"
