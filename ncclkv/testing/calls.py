"""Threads and sleeps of a program that may run in a seeded world."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ncclkv import concurrency


def start_thread(function: Callable[..., object], *args: Any) -> concurrency.Thread:
    """Start a thread of this rank, in a seeded world and outside one.

    Parameters
    ----------
    function : callable
    *args
        Arguments of the function.

    Returns
    -------
    Thread
        As of `threading`: its `join` waits for the end.
    """
    thread = concurrency.Thread(target=function, args=args, daemon=True)
    thread.start()
    return thread


def sleep(seconds: float) -> None:
    """Sleep by the clock of a seeded world, or by the system's outside one.

    Parameters
    ----------
    seconds : float
    """
    concurrency.sleep(seconds)
