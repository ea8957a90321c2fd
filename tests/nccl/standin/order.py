"""The happens-before order: a vector clock for every stream and for the host.

A stream's clock holds how far each stream has certainly run before the stream's next work begins.
Work on a stream follows the work before it. An event carries the clock of its stream to all that
wait for it. The host's clock enters all work that it queues. Two accesses to the same bytes, one of
them a write, must be ordered by these clocks. The order in which they happened to run proves
nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from tests.nccl.standin.errors import RefusedByStandIn
from tests.nccl.standin.memory import Allocation

HOST = -1
"""Index of the host among the streams."""

Clock = dict[int, int]


@dataclass(frozen=True)
class Span:
    """Bytes ``[lo, hi)`` of an allocation, read or written."""

    allocation: Allocation
    lo: int
    hi: int
    writes: bool

    def overlaps(self, other: Span) -> bool:
        return self.allocation is other.allocation and self.lo < other.hi and other.lo < self.hi

    def conflicts(self, other: Span) -> bool:
        return (self.writes or other.writes) and self.overlaps(other)

    def covers(self, other: Span) -> bool:
        return self.lo <= other.lo and other.hi <= self.hi

    def __str__(self) -> str:
        return f"{'writes' if self.writes else 'reads'} {self.allocation.name}[{self.lo}:{self.hi}]"


@dataclass(frozen=True)
class Access:
    """A span, the time of its access, and the work that accessed it."""

    span: Span
    stream: int
    tick: int
    what: str


class Order:
    """Clocks of one device.

    Parameters
    ----------
    checks : bool
        Whether accesses without an order are refused; otherwise wrong numbers alone show them.
    """

    def __init__(self, *, checks: bool = True) -> None:
        self._checks = checks
        self._clocks: defaultdict[int, Clock] = defaultdict(dict)

    def clock(self, stream: int) -> Clock:
        """Return a copy of a stream's clock."""
        return dict(self._clocks[stream])

    def join(self, stream: int, clock: Clock) -> None:
        """Order a stream's next work after everything in `clock`."""
        own = self._clocks[stream]
        for other, tick in clock.items():
            own[other] = max(own.get(other, 0), tick)

    def access(self, stream: int, spans: Sequence[Span], what: str) -> None:
        """Record that work queued on a stream uses `spans`; refuse accesses without an order."""
        self.join(stream, self._clocks[HOST])
        own = self._clocks[stream]
        own[stream] = own.get(stream, 0) + 1
        for span in spans if self._checks else ():
            self._check(span, own, what)
        for span in spans:
            new = Access(span, stream, own[stream], what)
            history = self._history(span.allocation)
            history[:] = [old for old in history if not _replaces(new, old)] + [new]

    def _history(self, allocation: Allocation) -> list[Access]:
        """Return the accesses of an allocation."""
        accesses: list[Access] = allocation.accesses
        return accesses

    def _check(self, span: Span, clock: Clock, what: str) -> None:
        """Refuse an access that is not ordered after the earlier ones it conflicts with."""
        for old in self._history(span.allocation):
            if span.conflicts(old.span) and clock.get(old.stream, 0) < old.tick:
                raise RefusedByStandIn(
                    f"{what} {span}, and nothing orders it after {old.what}, which {old.span}; "
                    f"let its stream wait for an event recorded after that"
                )

    def unordered(self, allocation: Allocation) -> list[Access]:
        """Return the accesses not ordered before the next work on the allocation's stream."""
        if not self._checks:
            return []
        clock = self.clock(allocation.stream)
        host = self._clocks[HOST]
        return [
            old
            for old in allocation.accesses
            if max(clock.get(old.stream, 0), host.get(old.stream, 0)) < old.tick
        ]


def _replaces(new: Access, old: Access) -> bool:
    """Return whether every conflict with the old access is one with the new, later access, too."""
    later = new.span.writes or (new.stream == old.stream and not old.span.writes)
    return later and new.span.covers(old.span)
