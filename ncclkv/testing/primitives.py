"""The clocks and locks of a world, which stand for Python's own in `ncclkv.concurrency`.

A lock of Python would block the only actor that runs.  These locks let another actor run instead.
An object that outlives its world is free for everybody: nothing waits in it any more.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from ncclkv.errors import UsageError
from ncclkv.testing.turns import NANOSECONDS, Actor
from ncclkv.testing.world_threads import acting, active

_EPOCH = 1_700_000_000 * NANOSECONDS
"""The wall clock at time 0 of a world."""


def point(name: str) -> None:
    """Let the world draw who goes on."""
    if acting() is not None:
        active().turns.point(name)


def monotonic_ns() -> int:
    """Return the nanoseconds of the world's clock."""
    if acting() is None:
        return time.monotonic_ns()
    turns = active().turns
    turns.point("clock")
    return turns.now


def monotonic() -> float:
    """Return the seconds of the world's clock."""
    return monotonic_ns() / NANOSECONDS


def wall_time() -> float:
    """Return the seconds of the world's clock since 1970."""
    return time.time() if acting() is None else (_EPOCH + monotonic_ns()) / NANOSECONDS


def sleep(seconds: float) -> None:
    """Let the actor run again after so many seconds of the world's clock."""
    if acting() is None:
        time.sleep(seconds)
    else:
        active().turns.sleep(int(seconds * NANOSECONDS), "sleep")


def sched_yield() -> None:
    """Let the actor run again at once, after the others that are ready."""
    if acting() is None:
        os.sched_yield()
    else:
        active().turns.sleep(1, "yield")


class _NotHeldError(RuntimeError):
    """The error of Python's locks for a release by another thread."""


class Lock:
    """Stands for `threading.Lock`."""

    _reentrant = False

    def __init__(self) -> None:
        self._owner: Actor | None = None
        self._count = 0
        self._waiting: list[Actor] = []

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Take the lock; let others run while one of them holds it."""
        actor = _actor()
        if actor is None:
            return True
        if self._reentrant and self._owner is actor:
            self._count += 1
            return True
        turns = active().turns
        turns.point("lock")
        limit = None if timeout < 0 else turns.now + int(timeout * NANOSECONDS)
        while self._owner is not None and not self._owner.over:
            if not blocking or (limit is not None and turns.now >= limit):
                return False
            self._waiting.append(actor)
            turns.wait("a lock", None if limit is None else limit - turns.now)
            self._waiting = [each for each in self._waiting if each is not actor]
        self._owner, self._count = actor, 1
        actor.locks += 1
        return True

    def release(self) -> None:
        """Free the lock, and let those that wait for it run again."""
        actor = _actor()
        if actor is None:
            return
        if self._owner is not actor and (self._reentrant or self._owner is None):
            if active().turns.ended:  # an actor that unwinds has no lock back from its wait
                return
            raise _NotHeldError("release of a lock that another actor, or nobody, holds")
        self._count -= 1
        if not self._count:
            self._free()

    def _free(self) -> int:
        """Free the lock from all of its owner's calls; return their count."""
        if self._owner is not None:
            self._owner.locks -= 1
        count, self._count, self._owner = self._count, 0, None
        for each in self._waiting:
            active().turns.wake(each)
        return count

    def locked(self) -> bool:
        """Return whether an actor holds the lock."""
        return self._owner is not None and not self._owner.over

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class RLock(Lock):
    """Stands for `threading.RLock`."""

    _reentrant = True


class Condition:
    """Stands for `threading.Condition`."""

    def __init__(self, lock: Lock | None = None) -> None:
        self._lock = RLock() if lock is None else lock
        self._waiting: list[Actor] = []
        self.acquire, self.release = self._lock.acquire, self._lock.release

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for `notify`, at most so many seconds; return whether it came."""
        actor = _actor()
        if actor is None:
            return True
        count = self._lock._free()
        self._waiting.append(actor)
        length = None if timeout is None else int(timeout * NANOSECONDS)
        try:
            active().turns.wait("a condition", length)
        finally:
            # Also after an exception: the caller's ``with`` block releases the lock.
            notified = actor not in self._waiting
            if not notified:
                self._waiting.remove(actor)
            self._take_back(count)
        return notified

    def _take_back(self, count: int) -> None:
        """Take the lock as often as the caller of `wait` had it."""
        try:
            self._lock.acquire()
        except BaseException:  # a fault of the world, which happens once
            self._lock.acquire()
            raise
        finally:
            self._lock._count = count

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        """Wait until a function returns true, at most so many seconds."""
        limit = None if timeout is None else monotonic() + timeout
        while not (holds := predicate()):
            left = None if limit is None else limit - monotonic()
            if left is not None and left <= 0:
                break
            self.wait(left)
        return holds

    def notify(self, n: int = 1) -> None:
        """Let so many of the actors that wait run again."""
        if _actor() is None:
            return
        turns = active().turns
        turns.changed()
        for each in self._waiting[:n]:
            turns.wake(each)
        del self._waiting[:n]

    def notify_all(self) -> None:
        """Let all actors that wait run again."""
        self.notify(len(self._waiting))


class Event:
    """Stands for `threading.Event`."""

    def __init__(self) -> None:
        self._condition = Condition()
        self._is_set = False

    def is_set(self) -> bool:
        """Return whether the event has happened."""
        point("look at an event")
        return self._is_set

    def set(self) -> None:
        """Let the event happen."""
        with self._condition:
            self._is_set = True
            self._condition.notify_all()

    def clear(self) -> None:
        """Let the event be yet to happen."""
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the event, at most so many seconds."""
        with self._condition:
            return self._condition.wait_for(lambda: self._is_set, timeout)


def _actor() -> Actor | None:
    """Return the actor that calls; None while no world runs.

    Raises
    ------
    UsageError
        In a thread that is not of the running world, which cannot take turns.
    """
    actor = acting()
    if actor is None and active().turns.current is not None:
        raise UsageError(
            f"{active().current().name} is not a thread of the seeded world, and cannot take "
            f"turns with its ranks; start it by ncclkv.testing.start_thread"
        )
    return actor
