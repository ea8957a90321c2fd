"""Several ranks as threads of one process, for notebooks and for tests."""

from __future__ import annotations

from collections.abc import Callable
from inspect import iscoroutinefunction, isgeneratorfunction
from typing import Any, TypeVar

from ncclkv import env
from ncclkv.arguments import check_count
from ncclkv.errors import UsageError
from ncclkv.testing.calls import sleep, start_thread
from ncclkv.testing.program import first_error
from ncclkv.testing.ranks import run_threads
from ncclkv.testing.seeded import NoProgress, Seeded
from ncclkv.tracebacks import trim_begin

__all__ = ["NoProgress", "Seeded", "run_ranks", "sleep", "start_thread"]

Result = TypeVar("Result")


def __dir__() -> list[str]:
    """List the public names."""
    return [*__all__, *(name for name in globals() if name.startswith("__"))]


def run_ranks(
    size: int,
    body: Callable[..., Result],
    *args: Any,
    timeout: float = 60.0,
    world: Seeded | None = None,
) -> list[Result]:
    """Run a function on several threads, each of which is a rank.

    Parameters
    ----------
    size : int
        Count of ranks.
    body : callable
        ``body(*args)``; inside it ``ncclkv.create("dist")`` is a store over all of them, in host
        memory.  ``dist_sync``, ``threads`` and ``ncclkv.comm.world()`` have the same ranks.  A
        thread that `body` starts is no rank: `UsageError` refuses these names there.
    *args
        Arguments of `body` on every rank.
    timeout : float
        Seconds that a rank waits for another.  Stores created in `body` have this timeout instead
        of ``NCCLKV_TIMEOUT``, unless ``create(timeout=)`` is given.
    world : Seeded, optional
        Draws the ranks' turns, delays and time from a seed, so that the run can be repeated.
        `body` starts threads by `start_thread`, and sleeps by
        `sleep`.  Ctrl-C ends its ranks at their next calls of the package.

    Returns
    -------
    list
        Results of `body`, in rank order.

    Raises
    ------
    UsageError
        When `size` is not an int above 0, `body` no function or one whose call only makes a
        generator or a coroutine, `timeout` not a finite number above 0, or `world` no `Seeded`.
    NoProgress
        When no rank of `world` can go on.
    Exception
        Exception of a rank, with the rank in its text.  When several ranks raise, the first cause:
        an error other than `CommError`, of the lowest rank.
    KeyboardInterrupt
        In the main thread, on Ctrl-C or the stop button of a notebook, within a second.  Calls of
        stores then raise `CommError` on every rank, and `KeyboardInterrupt` ends the ranks' own
        code.  A rank in a call that Python cannot end, such as `time.sleep`, ends after that call;
        a rank in an import, at its next call of a store.

    Examples
    --------
    >>> import numpy as np, ncclkv
    >>> def body():
    ...     with ncclkv.create("dist") as kv:
    ...         kv.init("w", np.zeros(2))
    ...         kv.push("w", np.full(2, kv.rank + 1.0))
    ...         return kv.pull("w")
    >>> ncclkv.testing.run_ranks(3, body)
    [array([6., 6.]), array([6., 6.]), array([6., 6.])]
    """
    try:
        check_count("run_ranks: size", size, 1)
        given: object = body
        if not callable(given):
            kind = type(given).__name__
            raise UsageError(f"run_ranks: body is a {kind}; give a function: run_ranks(2, body)")
        if isgeneratorfunction(given) or iscoroutinefunction(given):
            raise UsageError(
                "run_ranks: a call of body makes a generator or a coroutine, and runs nothing; "
                "give a function that runs it, as lambda: list(body()) or lambda: "
                "asyncio.run(body())"
            )
        if world is not None and not isinstance(world, Seeded):
            raise UsageError(
                f"run_ranks: world is {world!r}; give a seeded world: "
                f"world=ncclkv.testing.Seeded(7)"
            )
        if world is None:
            return run_threads(size, lambda: body(*args), env.timeout(timeout))
        outcome = world.run(size, lambda: body(*args), timeout)
        failed = first_error(outcome.errors, size)
        if failed is not None:
            raise failed
        return [outcome.results[rank] for rank in range(size)]
    except BaseException as error:
        trim_begin(error)
        raise
