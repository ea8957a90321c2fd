"""Callbacks: the threads that are inside `apply` or a program's step, in which ranks share no call.

Ranks call these functions at different times and in different orders.  A collective that begins
inside would meet another collective of a peer: sums would be wrong, or ranks would wait forever.
So every call that ranks make together is refused there, on all communicators of the thread.

These calls are launches, exchanges, ``split``, ``duplicate``, ``close``, ``node_shared``, the verbs
of stores, and waits of the host.  Waits that only order the streams of a GPU are allowed.
``abort`` is allowed on hosts; on a GPU it would free the stream that the callback uses.
"""

from __future__ import annotations

from collections.abc import Callable

from ncclkv import concurrency
from ncclkv.errors import UsageError

inside: dict[int, str] = {}
"""The threads inside a callback, each with the rank whose collective calls it."""


def refuse(call: str) -> None:
    """Refuse a call that ranks make together, if this thread is inside a callback.

    Called before the call has any effect: else this rank would be a collective ahead of its peers.
    A frequent call first looks whether `inside` is empty, which takes no call of Python.
    """
    who = inside.get(concurrency.get_ident())
    if who is not None:
        raise UsageError(
            f"{who}: {call} was called inside 'apply' or a step of a collective, and ranks call "
            f"these functions in different orders; call it after the wait for that collective"
        )


def run(who: str, function: Callable[..., object], *arguments: object) -> None:
    """Call `apply` or the steps of a program, in which calls that ranks share are refused."""
    thread = concurrency.get_ident()
    try:
        inside[thread] = who
        function(*arguments)
    finally:
        inside.pop(thread, None)
