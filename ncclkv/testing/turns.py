"""Turns: one rank runs at a time, and a draw decides who is next and how far the clock moves.

An actor is a thread of a rank.  One actor has the baton, and only that one runs.  At each point the
world draws once: the actor goes on, gives way, or loses time.  An actor that loses time runs
again when the clock, which only the world moves, has reached its time; the others run meanwhile.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from random import Random
from types import FrameType
from typing import Protocol

from ncclkv.testing.habits import Habits
from ncclkv.testing.point_log import PointLog

NANOSECONDS = 10**9

_BEGIN = 1000 * NANOSECONDS
"""The clock at the begin: a time that no code takes for zero."""

NEVER = 10**9 * NANOSECONDS
"""A time that no world reaches."""

_POINT = 1000
"""Nanoseconds of a point: two reads of the clock differ."""

_LONGEST_PAUSE = 10 * 10**6
"""Nanoseconds of the longest pause between two polls; whoever sleeps for longer does not poll."""

_LEAP_GROWTH = 5 * 10**6
"""Nanoseconds by which the limit of pauses grows with each pause in vain."""

_PRIORITY_CHANGES = 0.02
"""The part of the turns by priority after which the actor has another priority."""

_MAX_POINTS = 2_000_000
"""Points after which the ranks are said to go in circles."""

_DEPTH = 14
"""Frames of a stack in the report of ranks that cannot go on."""


class WorldEnd(BaseException):
    """Unwinds the actors of a world that has ended before them."""


class Actor:
    """A thread of a rank.

    Attributes
    ----------
    index : int
        From 0, in the order of creation; the first actors are the ranks themselves.
    rank : int
    ready_at : int or None
        The time in nanoseconds from which the actor can run; None while others have to wake it.
    waits_for : str
        What it waits for without a time; empty while it can run.
    polls : bool
        Whether it pauses between two polls.
    over : bool
        Whether its function has returned.
    locks : int
        Count of locks that it holds.
    label : str
        The last point.
    priority : float
    frame : callable
        Returns the frame that the actor is in.
    system_ident : int
        The identity of the system's thread that runs the actor; 0 before its begin.
    """

    frame: Callable[[], FrameType | None]
    system_ident = 0

    def __init__(self, index: int, rank: int, ready_at: int, priority: float) -> None:
        self.index, self.rank, self.priority = index, rank, priority
        self.ready_at: int | None = ready_at
        self.waits_for = ""
        self.polls = self.over = False
        self.locks = 0
        self.label = "begin"


class Baton(Protocol):
    """Passes the one turn between the actors of a world: threads, or greenlets."""

    def add(self, actor: Actor, main: Callable[[], None]) -> None:
        """Prepare an actor, whose function begins at its first turn."""

    def run(self, first: Actor, end: Callable[[], None]) -> None:
        """Give the first turn, and return when all actors are over.

        Calls `end` when Ctrl-C interrupts the wait for them.
        """

    def pass_on(self, giver: Actor, taker: Actor) -> None:
        """Let another actor run; return when the giver has the baton again."""

    def leave(self, giver: Actor, taker: Actor | None) -> None:
        """Let another actor run when the giver's function has returned; None if it was the last."""


class Accidents(Protocol):
    """Faults that happen at the points of a world."""

    def at_point(self, actor: Actor) -> float:
        """Raise at a point of an actor, or return the seconds for which its rank stops."""

    def suspends(self, point: int) -> float:
        """Return the seconds for which no rank does anything at a point of the world."""

    def loses(self, sender: int, receiver: int, seconds: float) -> bool:
        """Return whether a message that is sent after so many seconds is lost."""


class Turns:
    """The actors of a world, its clock, and who has the baton.

    Parameters
    ----------
    random : Random
        Only its method `random` is used: the others differ between versions of Python.
    habits : Habits
    trace : PointLog
    baton : Baton
    accidents : Accidents

    Attributes
    ----------
    now : int
        The clock in nanoseconds.
    points : int
        Count of points so far.
    current : Actor or None
        Who has the baton; None before the first turn and after the last.
    lost : int
        Nanoseconds that ranks and messages have lost, of all together.
    ended : str
        Why the world ended before its actors; empty while it goes on.
    stacks : dict of int to str
        The stacks of the actors at that time, by their indices.
    """

    def __init__(
        self, random: Random, habits: Habits, trace: PointLog, baton: Baton, accidents: Accidents
    ) -> None:
        self.draw = random.random
        self._habits, self._trace, self._baton = habits, trace, baton
        self._accidents = accidents
        self._stopped: dict[int, int] = {}
        self.now = _BEGIN
        self.points = self.lost = 0
        self.current: Actor | None = None
        self.ended = ""
        self.stacks: dict[int, str] = {}
        self._actors: list[Actor] = []
        self._arrivals: list[int] = []
        self._last: dict[tuple[int, int], int] = {}
        self._vain_pauses = 0

    @property
    def seconds(self) -> float:
        """The seconds since the begin."""
        return (self.now - _BEGIN) / NANOSECONDS

    def add(self, rank: int, main: Callable[[], None]) -> Actor:
        """Add an actor, which runs a function from its first turn."""
        actor = Actor(len(self._actors), rank, self.now, self.draw())
        self._actors.append(actor)

        def run() -> None:
            try:
                main()
            except WorldEnd:
                pass
            finally:
                self._leave(actor)

        self._baton.add(actor, run)
        return actor

    def run(self) -> None:
        """Run all actors to their ends."""
        self.current = self._actors[int(self.draw() * len(self._actors))]
        try:
            self._baton.run(self.current, lambda: self._stop("the run was interrupted"))
        finally:
            self.current = None

    # What the actor that has the baton calls

    def point(self, label: str) -> None:
        """Let the actor go on, give way, or lose time."""
        actor = self._step(label)
        self.now += _POINT
        drawn, habits = self.draw(), self._habits
        if drawn < habits.stall_rate:
            stall = int(self.draw() * self.draw() * habits.longest_stall)
            self.lost += stall
            actor.ready_at = self.now + stall
        elif drawn > habits.switch_rate and self._stopped.get(actor.rank, 0) <= self.now:
            return
        else:
            actor.ready_at = self.now
        self._give_way(actor)

    def sleep(self, nanoseconds: int, label: str) -> None:
        """Let the actor run again after so long."""
        actor = self._step(label)
        actor.polls = nanoseconds <= _LONGEST_PAUSE
        actor.ready_at = self.now + max(self._pause(actor, nanoseconds), 1)
        self._give_way(actor)
        actor.polls = False

    def wait(self, label: str, nanoseconds: int | None = None) -> None:
        """Let the actor run again when another wakes it, or after so long."""
        actor = self._step(label)
        actor.waits_for, actor.ready_at = label, None
        if nanoseconds is not None:
            actor.polls = nanoseconds <= _LONGEST_PAUSE
            actor.ready_at = self.now + self._pause(actor, nanoseconds)
        self._give_way(actor)
        actor.waits_for, actor.polls = "", False

    def wake(self, actor: Actor) -> None:
        """Let an actor that waits run again."""
        if actor.waits_for:
            actor.waits_for, actor.ready_at = "", self.now

    def changed(self) -> None:
        """Note that other ranks can see what the actor has done."""
        self._vain_pauses = 0

    def arrival(self, sender: int, receiver: int) -> int:
        """Draw the time at which a message arrives, after those of these ranks before it."""
        at, habits = self.now, self._habits
        if self._accidents.loses(sender, receiver, self.seconds):
            return NEVER
        if self.draw() < habits.delay_rate:
            delay = int(self.draw() * habits.longest_delay)
            self.lost += delay
            at += delay
        at = self._last[sender, receiver] = max(at, self._last.get((sender, receiver), 0))
        if at > self.now:
            self._arrivals.append(at)
        return at

    def end(self, why: str) -> None:
        """End the world: every actor unwinds, one after the other."""
        self._stop(why)
        raise WorldEnd(why)

    # The parts of these

    def _step(self, label: str) -> Actor:
        """Note a point of the actor that has the baton."""
        actor = self.current
        if self.ended or actor is None:
            raise WorldEnd(self.ended)
        self.points += 1
        if self.points > _MAX_POINTS:
            self.end(f"no rank has ended after {_MAX_POINTS} points")
        if seconds := self._accidents.suspends(self.points):
            self.now += int(seconds * NANOSECONDS)
            self.lost += int(seconds * NANOSECONDS)
        actor.label = label
        self._trace.note(self.now, actor.index, label)
        if seconds := self._accidents.at_point(actor):
            # The caller gives way: in a wait only when it can be woken.
            self._stopped[actor.rank] = self.now + int(seconds * NANOSECONDS)
        return actor

    def _pause(self, actor: Actor, nanoseconds: int) -> int:
        """Return the length of a pause, which is long when all actors have polled in vain.

        Such a pause lasts until something happens: an actor that does not poll can run again, a
        message arrives, or a drawn limit passes.  A timeout of minutes then takes few polls.  The
        limit grows with the pauses, since code that counts its polls means a short time by them.
        """
        if not actor.polls:
            return nanoseconds
        self._vain_pauses += 1
        if self._vain_pauses <= 2 * len(self._actors):
            return nanoseconds
        self._arrivals = [at for at in self._arrivals if at > self.now]
        events = [*self._arrivals, *self._busy(actor)]
        longest = min(self._habits.longest_leap, self._vain_pauses * _LEAP_GROWTH)
        limit = int(longest * (0.5 + 0.5 * self.draw()))
        if events:
            limit = min(limit, min(events) - self.now + _POINT)
        return max(nanoseconds, limit)

    def _busy(self, actor: Actor) -> Iterator[int]:
        """Yield the times at which other actors, which do not poll, can run again."""
        for each in self._actors:
            if not (each is actor or each.over or each.polls or each.ready_at is None):
                yield each.ready_at

    def _give_way(self, actor: Actor) -> None:
        """Give the baton to the next actor, and return when the caller has it again."""
        taker = self._next()
        if taker is None:
            self.end("each rank waits for another")
        elif taker is not actor:
            self.current = taker
            self._baton.pass_on(actor, taker)
            if self.ended:
                raise WorldEnd(self.ended)

    def _next(self) -> Actor | None:
        """Choose who runs next; move the clock if all have lost time."""
        ready: list[Actor] = []
        soonest = None
        for each in self._actors:
            at = None if each.over else self._time_of(each)
            if at is None:
                continue
            if soonest is None or at < soonest:
                soonest = at
            if at <= self.now:
                ready.append(each)
        if soonest is None:
            return None
        if not ready:
            self.now = soonest
            ready = [each for each in self._actors if not each.over and self._is_ready(each)]
        if len(ready) == 1:
            return ready[0]
        if not self._habits.by_priority:
            return ready[int(self.draw() * len(ready))]
        chosen = max(ready, key=lambda each: each.priority)
        if self.draw() < _PRIORITY_CHANGES:
            chosen.priority = self.draw() - 1
        return chosen

    def _is_ready(self, actor: Actor) -> bool:
        """Return whether an actor can run now."""
        at = self._time_of(actor)
        return at is not None and at <= self.now

    def _time_of(self, actor: Actor) -> int | None:
        """Return the time from which an actor can run; None while others have to wake it."""
        if actor.ready_at is None or not self._stopped:
            return actor.ready_at
        return max(actor.ready_at, self._stopped.get(actor.rank, 0))

    def _leave(self, actor: Actor) -> None:
        """Give the baton away for ever."""
        actor.over = True
        self._trace.note(self.now, actor.index, "end")
        self.changed()
        left = [each for each in self._actors if not each.over]
        taker = self._next()
        if left and taker is None:
            self._stop("each rank waits for another")
            taker = left[0]
        self.current = taker
        self._baton.leave(actor, taker)

    def _stop(self, why: str) -> None:
        """Note the end of the world, and where each actor is; all can run then."""
        if self.ended:
            return
        self.ended = why
        for each in self._actors:
            if not each.over:
                frame = each.frame()
                stack = traceback.format_stack(frame)[-_DEPTH:] if frame is not None else []
                at = each.waits_for or each.label
                self.stacks[each.index] = f"rank {each.rank}, at {at!r}:\n{''.join(stack)}"
                each.ready_at, each.waits_for = self.now, ""
