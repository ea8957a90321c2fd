"""Faults of a world: what goes wrong on a rank at one of its points, or between two ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ncclkv.testing.turns import Actor


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
class Stop:
    """The rank does nothing from a point on, for so many seconds.

    A rank that stops for longer than the others live has died: it says no farewell.  A rank that
    holds a lock stops when it has released the lock, which ranks that are processes do not share.
    """

    rank: int
    point: int
    seconds: float


@dataclass(frozen=True)
class Suspend:
    """The machine does nothing from a point on, for so many seconds: all waits become longer.

    Attributes
    ----------
    point : int
        Counted over all ranks, from 1.
    seconds : float
    """

    point: int
    seconds: float


@dataclass(frozen=True)
class LoseMessages:
    """No message from one rank to another arrives, from so many seconds on."""

    sender: int
    receiver: int
    seconds: float


Fault = Raise | Stop | Suspend | LoseMessages


class Faults:
    """The faults of a world, which happen as its ranks take their points.

    Parameters
    ----------
    faults : sequence of Fault
    """

    def __init__(self, faults: Sequence[Fault]) -> None:
        self._at_points = {
            (each.rank, each.point): each for each in faults if isinstance(each, Raise | Stop)
        }
        self._suspensions = {each.point: each for each in faults if isinstance(each, Suspend)}
        self._lost = [each for each in faults if isinstance(each, LoseMessages)]
        self._points: Counter[int] = Counter()
        self._due: dict[int, Stop] = {}

    def at_point(self, actor: Actor) -> float:
        """Let the fault of a rank happen at its point; return the seconds for which it stops."""
        rank = actor.rank
        self._points[rank] += 1
        fault = self._due.pop(rank, None) or self._at_points.get((rank, self._points[rank]))
        if isinstance(fault, Raise):
            raise fault.error()
        if isinstance(fault, Stop) and actor.locks:
            self._due[rank] = fault
        elif isinstance(fault, Stop):
            return fault.seconds
        return 0.0

    def suspends(self, point: int) -> float:
        """Return the seconds for which the machine does nothing at a point of the world."""
        fault = self._suspensions.get(point)
        return 0.0 if fault is None else fault.seconds

    def loses(self, sender: int, receiver: int, seconds: float) -> bool:
        """Return whether a message that is sent now is lost."""
        return any(
            (each.sender, each.receiver) == (sender, receiver) and seconds >= each.seconds
            for each in self._lost
        )
