"""Clocks, locks and threads: Python's own, or those of a seeded world.

The package takes them from here alone, as ``concurrency.monotonic()``, and no other module imports
`time` or `threading`.  In an ordinary run the names are Python's own.  A world of
`ncclkv.testing.Seeded` puts its own objects under these names while it runs, so that one seed
decides the turns of the ranks and the time.  So no module binds a name of this one.

A rank gives its turn to another at a wait, at a `point`, and before and after a function under
`shared_step`.  No order may depend on addresses, as that of a set of objects does.  C reads the
clock itself when a rank enters a short sum or appends a call (``clock.h``), so a world also sets
that clock.  Locks that modules make at their import stay Python's own, and no turn may change while
such a lock is held.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from os import sched_yield
from threading import (
    Condition,
    Event,
    ExceptHookArgs,
    Lock,
    RLock,
    Thread,
    current_thread,
    get_ident,
    main_thread,
)
from threading import enumerate as threads
from time import monotonic, monotonic_ns, perf_counter, sleep
from time import time as wall_time
from typing import Any, NamedTuple, TypeVar

__all__ = [
    "Condition",
    "Event",
    "ExceptHook",
    "ExceptHookArgs",
    "Lock",
    "RLock",
    "SharedStep",
    "Thread",
    "chain_excepthook",
    "current_thread",
    "get_ident",
    "local",
    "locals_",
    "main_thread",
    "monotonic",
    "monotonic_ns",
    "perf_counter",
    "point",
    "sched_yield",
    "shared_step",
    "shared_steps",
    "sleep",
    "stepped",
    "threads",
    "wall_time",
]

ExceptHook = Callable[[ExceptHookArgs], object]

Function = TypeVar("Function", bound=Callable[..., Any])


class SharedStep(NamedTuple):
    """A function whose order with other ranks' steps matters.

    Attributes
    ----------
    function : callable
        A method of a class, as the class defines it.
    name : str
    writes : bool
        Whether other ranks can see what it has done.
    """

    function: Callable[..., Any]
    name: str
    writes: bool


shared_steps: list[SharedStep] = []
"""Every function under `shared_step`."""

locals_: list[local] = []
"""Every object of `local`."""


class local(threading.local):  # the name of Python's own
    """Attributes of each thread; a world whose ranks share one thread swaps them."""

    def __new__(cls, *args: Any, **kwargs: Any) -> local:
        made = super().__new__(cls, *args, **kwargs)
        locals_.append(made)
        return made


def point(name: str) -> None:
    """Let a world give the turn to another rank between two steps of the caller."""


def shared_step(name: str, *, writes: bool = False) -> Callable[[Function], Function]:
    """Mark a method that reads or writes memory of several ranks.

    A world gives turns before and after it.  In an ordinary run the method is called as it is.
    """

    def note(function: Function) -> Function:
        shared_steps.append(SharedStep(function, name, writes))
        return function

    return note


def stepped(function: Function, name: str) -> Function:
    """Mark a function that an object keeps, and that writes memory of several ranks.

    Returns
    -------
    callable
        The function as it is; in a world, one with turns before and after it.
    """
    return function


def chain_excepthook(hook: Callable[[ExceptHookArgs, ExceptHook, bool], object]) -> None:
    """Call a function with each exception that ends a thread, in front of the present hook.

    Parameters
    ----------
    hook : callable
        ``hook(args, former, plain)``; `plain` is true when the former hook is Python's own.
    """
    former, plain = threading.excepthook, threading.excepthook is threading.__excepthook__
    threading.excepthook = lambda args: hook(args, former, plain)
