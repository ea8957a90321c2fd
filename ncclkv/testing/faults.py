"""Faults of a world: what goes wrong on a rank at one of its points, or between two ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ncclkv.testing.turns import Actor, WorldEnd


@dataclass(frozen=True)
class Raise:
    """The rank raises an exception at a point, as Ctrl-C or a lack of memory does.

    Attributes
    ----------
    rank, point : int
        The point is counted on that rank, from 1.
    error : callable
        Returns the exception.
    """

    rank: int
    point: int
    error: Callable[[], BaseException] = KeyboardInterrupt


@dataclass(frozen=True)
class Die:
    """The rank ends at a point, and says no farewell."""

    rank: int
    point: int


@dataclass(frozen=True)
class Stop:
    """The rank does nothing from a point on, for so many seconds."""

    rank: int
    point: int
    seconds: float


@dataclass(frozen=True)
class LoseMessages:
    """No message from one rank to another arrives, from so many seconds on."""

    sender: int
    receiver: int
    seconds: float


Fault = Raise | Die | Stop | LoseMessages


class Faults:
    """The faults of a world, which happen as its ranks take their points.

    Parameters
    ----------
    faults : sequence of Fault
    """

    def __init__(self, faults: Sequence[Fault]) -> None:
        self._at_points = {
            (each.rank, each.point): each for each in faults if not isinstance(each, LoseMessages)
        }
        self._lost = [each for each in faults if isinstance(each, LoseMessages)]
        self._points: Counter[int] = Counter()
        self._dead: set[int] = set()

    def at_point(self, actor: Actor) -> float:
        """Let the fault of a rank happen at its point; return the seconds for which it stops."""
        rank = actor.rank
        self._points[rank] += 1
        fault = self._at_points.get((rank, self._points[rank]))
        if isinstance(fault, Die):
            self._dead.add(rank)
        if rank in self._dead:
            raise WorldEnd(f"rank {rank} is dead")
        if isinstance(fault, Raise):
            raise fault.error()
        return fault.seconds if isinstance(fault, Stop) else 0.0

    def loses(self, sender: int, receiver: int, seconds: float) -> bool:
        """Return whether a message that is sent now is lost."""
        return any(
            (each.sender, each.receiver) == (sender, receiver) and seconds >= each.seconds
            for each in self._lost
        )
