"""Several ranks as threads of one process, for notebooks and for tests."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

from ncclkv import env
from ncclkv.arguments import check_count
from ncclkv.comm.host import threads
from ncclkv.errors import CommError, annotate

__all__ = ["run_ranks"]

Result = TypeVar("Result")


def __dir__() -> list[str]:
    """List the public names."""
    return [*__all__, *(name for name in globals() if name.startswith("__"))]


def run_ranks(
    size: int, body: Callable[..., Result], *args: Any, timeout: float = 60.0
) -> list[Result]:
    """Run a function on several threads, each of which is a rank.

    Parameters
    ----------
    size : int
        Number of ranks.
    body : callable
        ``body(*args)``; inside it ``ncclkv.create("dist")`` is a store over all of them, in host
        memory.  ``dist_sync``, ``threads`` and ``ncclkv.comm.world()`` have the same ranks.
    *args
        Arguments of `body` on every rank.
    timeout : float
        Seconds that a rank waits for another.  Stores created in `body` have this timeout instead
        of ``NCCLKV_TIMEOUT``, unless ``create(timeout=)`` is given.

    Returns
    -------
    list
        Results of `body`, in rank order.

    Raises
    ------
    UsageError
        When `size` is not an int above 0, or `timeout` not a finite number above 0.
    Exception
        Exception of a rank, with the rank in its text.  When several ranks raise, the first cause:
        an error other than `CommError`, of the lowest rank.

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
    check_count("run_ranks: size", size, 1)
    seconds = env.timeout(timeout)
    results: dict[int, Result] = {}
    errors: dict[int, BaseException] = {}

    def rank_body(rank: int, communicator: Any) -> None:
        threads.become(communicator)
        try:
            results[rank] = body(*args)
        except BaseException as error:
            errors[rank] = error
            communicator.abort(f"{type(error).__name__}: {error}")
        finally:
            threads.become(None)

    workers = [
        threading.Thread(target=rank_body, args=(rank, communicator), name=f"rank {rank}")
        for rank, communicator in enumerate(threads.communicators(size, seconds))
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if errors:
        raise _first(errors, size)
    return [results[rank] for rank in range(size)]


def _first(errors: dict[int, BaseException], size: int) -> BaseException:
    """Return the error that caused the others, with its rank in the text."""
    causes = {rank: error for rank, error in errors.items() if not isinstance(error, CommError)}
    rank, error = min((causes or errors).items())
    annotate(error, f"on rank {rank} of {size}")
    return error
