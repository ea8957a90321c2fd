"""Accidents of valid programs: faults of a rank or of its messages, at a drawn point."""

from __future__ import annotations

from ncclkv.errors import CommTimeout, KVStoreError, RankLost
from ncclkv.testing.faults import Fault, LoseMessages, Raise, Stop, Suspend
from tests.world.draw import Draw
from tests.world.oracle import Outcome, says, told

_POINTS = 1500
"""The last point of a rank that an accident may have; most programs have more."""


def draw_accident(draws: Draw, size: int, timeout: float) -> Fault:
    """Draw what happens to a program of so many ranks, whose calls have so much time."""
    rank, point = draws.below(size), 1 + draws.below(_POINTS)
    kind = draws.pick(("raise", "raise", "raise", "pause", "suspend", "stop", "messages"))
    if kind == "raise":
        return Raise(rank, point, draws.pick((KeyboardInterrupt, MemoryError)))
    if kind == "pause":
        return Stop(rank, point, 0.5 * timeout)
    if kind == "suspend":
        return Suspend(point, 0.5 * timeout)
    if kind == "stop":
        return Stop(rank, point, 4.0 * timeout)
    return LoseMessages(rank, (rank + 1) % size, draws.real(1.0))


def accident_verdict(
    outcome: Outcome, accident: Fault, timeout: float, lost: float, slack: float
) -> str:
    """Return the complaint about how a valid program with an accident ended, or no text.

    Parameters
    ----------
    lost, slack : float
        As for `reverse_verdict`.
    """
    is_pause = isinstance(accident, Stop | Suspend) and accident.seconds < timeout
    allowed: tuple[type[BaseException], ...] = KVStoreError, KeyboardInterrupt, MemoryError
    if is_pause:
        allowed = ()
    elif not isinstance(accident, Raise):
        allowed = CommTimeout, RankLost
    lines = []
    for rank in range(outcome.size):
        error = outcome.errors.get(rank)
        if rank not in outcome.ended:
            lines.append(f"rank {rank} has not ended")
        elif error is not None and not isinstance(error, allowed):
            lines.append(f"rank {rank} has the wrong end: {told(error)}")
        elif error is not None and not _is_named(error, rank, accident):
            lines.append(f"rank {rank}: {accident} is not named: {told(error)}")
    last = max(outcome.ended.values(), default=0.0)
    if isinstance(accident, Raise) and outcome.errors and last > timeout + lost + slack:
        lines.append(f"the last rank ended after {last:.1f} s")
    return "\n".join([*lines, str(accident)]) if lines else ""


def _is_named(error: BaseException, rank: int, accident: Fault) -> bool:
    """Return whether the error of another rank names the one that has the accident."""
    if isinstance(accident, LoseMessages | Suspend) or rank == accident.rank:
        return True
    return says(error, f"rank {accident.rank}")
