"""Batons: pass the one turn between actors that are threads, or greenlets of one thread."""

from __future__ import annotations

import _thread
import importlib
import importlib.util
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from ncclkv import concurrency
from ncclkv.testing.turns import Actor, Baton


def choose(*, threads: bool) -> Baton:
    """Return a baton of greenlets, which are faster, if that package is installed.

    Greenlets share Python's trace function, so worlds that use one take threads.
    """
    has_greenlets = importlib.util.find_spec("greenlet") is not None
    return Greenlets() if has_greenlets and not threads else SystemThreads()


class SystemThreads:
    """Each actor is a thread, which waits for its turn."""

    def __init__(self) -> None:
        self._turns: dict[Actor, Any] = {}
        self._threads: list[threading.Thread] = []
        self._end = _held_lock()

    def add(self, actor: Actor, main: Callable[[], None]) -> None:
        turn = self._turns[actor] = _held_lock()

        def run() -> None:
            actor.system_ident = _thread.get_ident()
            turn.acquire()
            main()

        actor.frame = lambda: sys._current_frames().get(actor.system_ident)
        thread = threading.Thread(target=run, name=f"actor {actor.index}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def run(self, first: Actor, end: Callable[[], None]) -> None:
        self._turns[first].release()
        try:
            self._end.acquire()
        except BaseException:  # Ctrl-C, or the exception of another signal handler
            end()
            self._end.acquire()
            raise
        for thread in self._threads:
            thread.join()

    def pass_on(self, giver: Actor, taker: Actor) -> None:
        self._turns[taker].release()
        self._turns[giver].acquire()

    def leave(self, giver: Actor, taker: Actor | None) -> None:
        (self._end if taker is None else self._turns[taker]).release()


class Greenlets:
    """All actors are greenlets of the thread that runs the world; a switch needs no system call."""

    def __init__(self) -> None:
        package = importlib.import_module("greenlet")
        self._make: Callable[..., Any] = package.greenlet
        self._home: Any = package.getcurrent()
        self._greenlets: dict[Actor, Any] = {}
        self._next: Actor | None = None
        self._locals: dict[Actor, list[dict[str, Any]]] = {}

    def add(self, actor: Actor, main: Callable[[], None]) -> None:
        actor.system_ident = _thread.get_ident()
        made = self._greenlets[actor] = self._make(main, self._home)
        actor.frame = lambda: _frame(made)

    def run(self, first: Actor, end: Callable[[], None]) -> None:
        before = _swap_locals([])
        actor: Actor | None = first
        while actor is not None:
            _swap_locals(self._locals.pop(actor, []))
            self._greenlets[actor].switch()
            actor = self._next
        _swap_locals(before)

    def pass_on(self, giver: Actor, taker: Actor) -> None:
        self._locals[giver] = _swap_locals(self._locals.pop(taker, []))
        self._greenlets[taker].switch()

    def leave(self, giver: Actor, taker: Actor | None) -> None:
        self._next = taker


def _held_lock() -> Any:
    """Return a lock that is held."""
    lock = _thread.allocate_lock()
    lock.acquire()
    return lock


def _frame(made: Any) -> FrameType | None:
    """Return the frame of a greenlet: where it stopped, or this one if the greenlet runs."""
    stopped: FrameType | None = made.gr_frame
    return stopped or sys._getframe()


def _swap_locals(values: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Replace the attributes of all thread-locals; return those before."""
    before = [dict(vars(each)) for each in concurrency.locals_]
    for index, each in enumerate(concurrency.locals_):
        vars(each).clear()
        vars(each).update(values[index] if index < len(values) else {})
    return before
