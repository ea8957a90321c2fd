"""Puts a world in the place of Python's clocks and locks, and takes it away again."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial, wraps
from operator import attrgetter
from typing import Any, cast

# A module first imported inside a world would take its locks from the world.
import ncclkv.store.create  # noqa: F401
from ncclkv import concurrency, env
from ncclkv.concurrency import Function, SharedStep
from ncclkv.kernels.host import compiled
from ncclkv.testing import primitives
from ncclkv.testing.habits import OWNERS, Habits
from ncclkv.testing.turns import Turns
from ncclkv.testing.world_threads import Thread, Threads, acting


@contextmanager
def installed(threads: Threads, habits: Habits) -> Iterator[None]:
    """Run the ``with`` block under a world's clocks, locks, steps, constants and variables.

    The garbage collector is off meanwhile: finalizers would run at points that no seed decides.
    """
    undo: list[Callable[[], object]] = []
    collects = gc.isenabled()
    gc.disable()
    undo.append(lambda: compiled.set_clock(None))
    try:
        for name, value in _names(threads).items():
            undo.append(_replace(concurrency, name, value))
        for step in concurrency.shared_steps:
            undo.append(_wrap(step, threads.turns))
        for name, value in habits.constants.items():
            undo += _replace_constant(name, value)
        with env.temporarily(habits.variables):
            yield
    finally:
        for each in reversed(undo):
            each()
        if collects:
            gc.enable()


def _names(threads: Threads) -> dict[str, Any]:
    """Return what a world has under the names of `concurrency`."""
    return {
        "Condition": primitives.Condition,
        "Event": primitives.Event,
        "Lock": primitives.Lock,
        "RLock": primitives.RLock,
        "Thread": Thread,
        "current_thread": threads.current,
        "get_ident": threads.ident,
        "threads": threads.all,
        "monotonic": primitives.monotonic,
        "monotonic_ns": primitives.monotonic_ns,
        "perf_counter": primitives.monotonic,
        "wall_time": primitives.wall_time,
        "sleep": primitives.sleep,
        "sched_yield": primitives.sched_yield,
        "point": primitives.point,
        "stepped": partial(_stepped, threads.turns, writes=True),
    }


def _replace(owner: Any, name: str, value: object) -> Callable[[], object]:
    """Set an attribute; return a function that sets the former one."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    return lambda: setattr(owner, name, before)


def _wrap(step: SharedStep, turns: Turns) -> Callable[[], object]:
    """Give turns before and after a method; return a function that restores it."""
    function = step.function
    path, _, method = function.__qualname__.rpartition(".")
    owner = sys.modules[function.__module__]
    stepped = _stepped(turns, function, step.name, writes=step.writes)
    return _replace(attrgetter(path)(owner) if path else owner, method, stepped)


def _stepped(turns: Turns, function: Function, name: str, *, writes: bool) -> Function:
    """Return a function with turns before and after it."""
    after = f"after {name}"

    @wraps(function)
    def stepped(*args: Any, **kwargs: Any) -> Any:
        if acting() is None:
            return function(*args, **kwargs)
        turns.point(name)
        if writes:
            turns.changed()
        compiled.set_clock(turns.now)
        result = function(*args, **kwargs)
        turns.point(after)
        return result

    return cast("Function", stepped)


def _replace_constant(name: str, value: object) -> list[Callable[[], object]]:
    """Set a constant in its module, and in those that have imported it by its name."""
    own = getattr(sys.modules[OWNERS[name]], name)
    owners = [each for key, each in sys.modules.items() if key.startswith("ncclkv.")]
    missing = object()
    return [_replace(each, name, value) for each in owners if vars(each).get(name, missing) is own]
