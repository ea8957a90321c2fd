"""Report of a failed job, as text."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Iterator

from ncclkv import notify
from ncclkv.cli import other_errors, unreached
from ncclkv.cli.outcome import Outcome, Rank, never_started
from ncclkv.comm.diagnosis.reports import format_ranks
from ncclkv.system.processes import how


def report(outcome: Outcome, attempt: str) -> str:
    """Describe a failed job: the first failed rank, its last lines, and the others' errors.

    Parameters
    ----------
    outcome : Outcome
    attempt : str
        Index of this start and count of all starts, such as ``"start 2 of 3"``.
    """
    headline = f"ncclkv run: the job failed after {outcome.seconds:.1f} s ({attempt}): "
    first = _first_to_name(outcome)
    missing = outcome.not_begun
    if missing and (lines := unreached.describe(outcome)):
        return "\n".join([headline + lines[0], *lines[1:]]) + "\n"
    if missing and len(missing) < len(outcome.ranks):
        end = f"{describe_not_begun(missing)}; the launcher {how(outcome.launcher)}"
        return "\n".join([headline + end, *outcome.launcher_lines]) + "\n"
    if first is None:
        return "\n".join([headline + _describe_launcher(outcome), *outcome.launcher_lines]) + "\n"
    lines = [headline + _describe_end(first, outcome)]
    if first.last:
        lines += ["its last lines of stderr:"]
        lines += [f"  [{first.index}] {line}" for line in first.last]
    lines += _describe_silent(outcome, first)
    others = [rank for rank in outcome.ranks.values() if rank is not first]
    errors = other_errors.describe(others)
    lines += ["errors of the other ranks:", *errors] if errors else []
    if len(lines) > 2:  # the cause is the last line on a terminal, too
        lines.append(f"ncclkv run: {_describe_end(first, outcome)}")
    return "\n".join(lines) + "\n"


def describe_not_begun(ranks: Iterable[Rank]) -> str:
    """Describe ranks that never began, by the hosts on which the user placed them.

    Examples
    --------
    >>> describe_not_begun([Rank(2, place="node2"), Rank(3, place="node2")])
    'ranks 2, 3 on node2 did not begin'
    """
    places: dict[str, list[Rank]] = {}
    for rank in ranks:
        places.setdefault(rank.place, []).append(rank)
    each = [_format(there) + f" on {name}" * bool(name) for name, there in places.items()]
    return f"{' and '.join(each)} did not begin"


def _first_to_name(outcome: Outcome) -> Rank | None:
    """Return the rank that the report begins with."""
    first = outcome.first
    missing = never_started(outcome.ranks.values())
    if missing and (first is None or first.mpi == notify.MPI_BEGINS):
        return missing[0]
    return next(iter(outcome.torn), None) or outcome.left or first


def _describe_end(rank: Rank, outcome: Outcome) -> str:
    """Describe the end of the rank that the report begins with."""
    end = f"{how(rank.code)}, {rank.ended:.1f} s after the start" if rank.code is not None else ""
    waiting = [each for each in outcome.ranks.values() if each.mpi == notify.MPI_BEGINS]
    if rank in never_started(outcome.ranks.values()):
        ended = f": it {end}" if end else ""
        return f"{rank} did not reach MPI's start, where {_format(waiting)} waited for it{ended}"
    if rank in outcome.torn:
        who, when = " or ".join(map(str, outcome.torn)), f"{rank.lost:.1f} s after the start"
        return f"{who} has lost its supervisor, {when}: it was killed, or its connection broke"
    if rank is outcome.left:
        others = _format(each for each in outcome.unreported if each is not rank)
        if rank.code != 0:
            code = "exit code 0" if rank.exits and rank.exits.code == 0 else "an unknown exit code"
            end = f"began to exit with {code}, {rank.leaves:.1f} s after the start"
        return f"{rank} {end}, while {others} had not ended"
    return f"{rank} failed: {rank.reason}" if rank.reason else f"{rank} {end}"


def _format(ranks: Iterable[Rank]) -> str:
    """List the indices of ranks."""
    return format_ranks([rank.index for rank in ranks])


def _describe_launcher(outcome: Outcome) -> str:
    """Describe the end of the launcher, where no rank has reported a failure."""
    ranks = outcome.ranks.values()
    early = "" if any(rank.began for rank in ranks) else ", before any rank began"
    unreported = outcome.unreported
    missing = f"; {_format(unreported)} did not report an end" if unreported else ""
    output = "; its output:" if outcome.launcher_lines else ", without output"
    return f"its launcher {how(outcome.launcher)}{early}{missing}{output}"


def _describe_silent(outcome: Outcome, first: Rank) -> Iterator[str]:
    """Describe stopped and ended ranks that the others may have waited for."""
    for rank in outcome.ranks.values():
        if rank.stopped is not None:
            signum, seconds = rank.stopped
            name = signal.Signals(signum).name
            yield f"{rank} was stopped by {name} {seconds:.1f} s after the start and not continued"
        if rank.code == 0 and rank is not first and rank.ended < (first.failed() or 0.0):
            yield f"{rank} had ended with exit code 0, {rank.ended:.1f} s after the start"
