"""The threads of the world that runs, of which there is one at most in a process."""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from ncclkv.errors import UsageError
from ncclkv.testing.identities import Identities
from ncclkv.testing.line_points import each_line
from ncclkv.testing.turns import NANOSECONDS, Actor, Turns


class Threads:
    """The threads of a world.

    Parameters
    ----------
    turns : Turns
    identities : Identities
    files : sequence of str
        The source files each of whose lines is a point.

    Attributes
    ----------
    turns, identities, files
        As given.
    """

    def __init__(self, turns: Turns, identities: Identities, files: Sequence[str] = ()) -> None:
        self.turns, self.identities, self.files = turns, identities, files
        self.by_actor: dict[Actor, Thread] = {}

    def current(self) -> Thread | threading.Thread:
        """Return the thread that calls."""
        actor = acting()
        return threading.current_thread() if actor is None else self.by_actor[actor]

    def ident(self) -> int:
        """Return the identity of the thread that calls."""
        actor = acting()
        return _thread.get_ident() if actor is None else self.by_actor[actor].ident

    def all(self) -> list[Thread | threading.Thread]:
        """Return all threads of the process, and those of the world."""
        mine = [each for each in self.by_actor.values() if each.is_alive()]
        return [*threading.enumerate(), *mine]


_active: list[Threads] = []
"""The threads of the world that runs, or of the last one."""


_running = threading.Lock()
"""Held while a world runs."""


@contextmanager
def only_world(threads: Threads) -> Iterator[None]:
    """Let a world run in the ``with`` block.

    Raises
    ------
    UsageError
        While another world runs in this process.
    """
    if not _running.acquire(blocking=False):
        raise UsageError(
            "a seeded world runs in this process, and it can have one at a time; end that run first"
        )
    try:
        _active[:] = [threads]
        yield
    finally:
        _running.release()


def active() -> Threads:
    """Return the threads of the world that runs, or of the last one."""
    return _active[0]


def acting() -> Actor | None:
    """Return the actor that calls; None in a thread that is not of the world, and outside one."""
    actor = _active[0].turns.current
    is_its_own = actor is not None and actor.system_ident == _thread.get_ident()
    return actor if is_its_own else None


class Thread:
    """Stands for `threading.Thread`: a thread of the rank that starts it.

    Attributes
    ----------
    name : str
    daemon : bool
    ident : int
        0 before its begin.
    """

    def __init__(
        self,
        group: None = None,
        target: Callable[..., object] | None = None,
        name: str | None = None,
        args: Iterable[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        daemon: bool | None = None,
    ) -> None:
        self.ident = 0
        self.name = name or "thread"
        self.daemon = bool(daemon)
        self._call = None if target is None else partial(target, *args, **(kwargs or {}))
        self._actor: Actor | None = None
        self._joining: list[Actor] = []

    def start(self) -> None:
        """Begin at a turn that the world draws."""
        starter = acting()
        if starter is None:
            raise UsageError(f"{self.name} is a thread of a seeded world, which has ended")
        self.start_on(starter.rank)
        active().turns.point("start a thread")

    def start_on(self, rank: int) -> None:
        """Begin as a thread of a rank."""
        self.ident = active().identities.take()
        self._actor = active().turns.add(rank, self._run)
        active().by_actor[self._actor] = self

    def _run(self) -> None:
        """Run as an actor, and wake the actors that wait for the end."""
        try:
            with each_line(active().turns, active().files):
                self.run()
        except Exception as error:
            args = type(error), error, error.__traceback__, None
            threading.excepthook(threading.ExceptHookArgs(args))
        finally:
            active().identities.free(self.ident)
            for each in self._joining:
                active().turns.wake(each)

    def run(self) -> None:
        """Call the target."""
        if self._call is not None:
            self._call()

    def is_alive(self) -> bool:
        """Return whether it has begun and has not ended."""
        return self._actor is not None and not self._actor.over

    def join(self, timeout: float | None = None) -> None:
        """Wait for the end, at most so many seconds."""
        joiner, turns = acting(), active().turns
        limit = None if timeout is None else turns.now + int(timeout * NANOSECONDS)
        while joiner and self.is_alive() and (limit is None or turns.now < limit):
            self._joining.append(joiner)
            turns.wait("the end of a thread", None if limit is None else limit - turns.now)
            self._joining.remove(joiner)
