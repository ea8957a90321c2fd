"""Work of all ranks side by side: all wait for the last, and all get every rank's outcome."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing
from typing import Any, TypeVar

from ncclkv.comm.base import Communicator
from ncclkv.store.single_rank import ENDED, FAILED, RUNNING, FailedOnRank, advance

T = TypeVar("T")


def run_on_all_ranks(comm: Communicator, verb: str, work: Generator[None, None, T]) -> list[T]:
    """Run each rank's own work, and return the results of all ranks, in rank order; collective.

    The ranks exchange a message whenever each has yielded or ended.  So the deadline is for a part
    of the work, not for all of it, and no rank works on after another has failed.

    Parameters
    ----------
    comm : Communicator
    verb : str
        The call, for messages.
    work : generator
        This rank's work.  Its result is sent to all ranks, and must be picklable.

    Raises
    ------
    FailedOnRank
        On every rank, when the work of any rank fails; the failure is that of the lowest rank.
    """
    results: dict[int, T] = {}
    message: tuple[str, Any] = (RUNNING, None)
    failure: Exception | None = None
    with closing(work):
        while len(results) < comm.size:
            if message[0] == RUNNING:
                message, failure = advance(comm, verb, work)
            else:
                message = (ENDED, None)  # the others have the result
            messages = comm.control.allgather(message, f"{verb} on all ranks")
            for rank, (state, content) in enumerate(messages):
                if state == FAILED:
                    kind, text = content
                    own = failure if rank == comm.rank else None
                    raise FailedOnRank(own or kind(text))
                if state == ENDED:
                    results.setdefault(rank, content)
    return [results[rank] for rank in range(comm.size)]
