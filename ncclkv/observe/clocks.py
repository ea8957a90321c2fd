"""Clocks: differences between the monotonic clocks of machines, from exchanges of all ranks.

A rank that receives from another leaves an exchange after the other has entered it.  If rank A
leaves at ``exit`` by its clock, and rank B has entered at ``enter`` by its own, then A's clock is
ahead of B's by at most ``exit - enter``.  Exchanges in both directions give both bounds.  Clocks
drift, so the bounds of the begin and of the end of a trace are taken apart, and the difference in
between lies on a line.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

_FEWEST = 8
"""Exchanges of which the first quarter and the last quarter are taken apart, at least."""

_DRIFT_SECONDS = 5.0
"""Time between the two quarters, at least: a shorter one gives no drift."""


class Visit(NamedTuple):
    """A rank's part in an exchange, by its own clock.

    Attributes
    ----------
    clock : str
    enter : float or None
        None if no other rank waits for this rank.
    exit : float or None
        None if this rank waits for no other.
    """

    clock: str
    enter: float | None
    exit: float | None


@dataclass(frozen=True)
class ClockOffset:
    """The difference of a clock to that of the first rank: ``first = own - at(own)``.

    Attributes
    ----------
    begin, end : (float, float)
        A time of the own clock, and the difference there.
    error : float
        The difference is right to so many seconds.
    """

    begin: tuple[float, float] = (0.0, 0.0)
    end: tuple[float, float] = (0.0, 0.0)
    error: float = 0.0

    def at(self, time: float) -> float:
        """Return the difference at a time of the own clock."""
        (first, begin), (last, end) = self.begin, self.end
        if last == first:
            return begin
        return begin + (end - begin) * (time - first) / (last - first)


class _Bound(NamedTuple):
    """Bounds of one exchange: the difference is in ``[low, high]`` at a time of the own clock."""

    time: float
    low: float
    high: float


def offsets(
    exchanges: Iterable[Sequence[Visit]], first: str, walls: Mapping[str, float]
) -> dict[str, ClockOffset]:
    """Return the difference of each clock to the clock `first`.

    Parameters
    ----------
    exchanges : iterable of sequence of Visit
    first : str
    walls : mapping of str to float
        The wall time minus the clock, on each machine; used if no exchange compares two clocks.
    """
    bounds: dict[str, list[_Bound]] = {}
    for visits in exchanges:
        for clock in {visit.clock for visit in visits} - {first}:
            found = _bound(visits, clock, first)
            if found is not None:
                bounds.setdefault(clock, []).append(found)
    made = {}
    for clock, wall in walls.items():
        difference = walls[first] - wall
        unknown = ClockOffset((0.0, difference), (0.0, difference), float("inf"))
        made[clock] = ClockOffset() if clock == first else _fit(bounds.get(clock, ())) or unknown
    return made


def _bound(visits: Sequence[Visit], own: str, first: str) -> _Bound | None:
    """Return the bounds of the difference of clock `own` to clock `first`; None without any."""
    enters = {own: [], first: []}  # type: dict[str, list[float]]
    exits = {own: [], first: []}  # type: dict[str, list[float]]
    for visit in visits:
        if visit.clock in enters:
            enters[visit.clock] += [] if visit.enter is None else [visit.enter]
            exits[visit.clock] += [] if visit.exit is None else [visit.exit]
    low, high = float("-inf"), float("inf")
    if exits[own] and enters[first]:
        high = min(exits[own]) - max(enters[first])
    if exits[first] and enters[own]:
        low = max(enters[own]) - min(exits[first])
    times = [*exits[own], *enters[own]]
    return _Bound(min(times), low, high) if times and (low, high) != (-high, high) else None


def _fit(bounds: Sequence[_Bound]) -> ClockOffset | None:
    """Return the line through the differences at begin and end; None without both bounds."""
    ordered = sorted(bounds)
    whole = _tightest(ordered)
    if whole is None:
        return None
    quarter = len(ordered) // 4
    if len(ordered) >= _FEWEST and ordered[-quarter].time - ordered[quarter].time > _DRIFT_SECONDS:
        begin, end = _tightest(ordered[:quarter]), _tightest(ordered[-quarter:])
        if begin is not None and end is not None:
            return ClockOffset(begin[:2], end[:2], max(begin[2], end[2]))
    return ClockOffset(whole[:2], whole[:2], whole[2])


def _tightest(bounds: Sequence[_Bound]) -> tuple[float, float, float] | None:
    """Return a time, the difference there, and half the width of all bounds together."""
    low = max((bound.low for bound in bounds), default=float("-inf"))
    high = min((bound.high for bound in bounds), default=float("inf"))
    if low == float("-inf") or high == float("inf"):
        return None
    time = sum(bound.time for bound in bounds) / len(bounds)
    return time, (low + high) / 2, abs(high - low) / 2
