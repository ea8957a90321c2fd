"""What one rank does while the others wait, and all learn of."""

from __future__ import annotations

import socket
from collections.abc import Generator
from contextlib import closing
from typing import Any, TypeVar

from ncclkv.checkpoint.directory import reason
from ncclkv.comm.base import Communicator
from ncclkv.errors import CheckpointError, CommError, ContractError, UsageError

T = TypeVar("T")

_GOES_ON, _ENDED, _FAILED = "goes on", "ended", "failed"


def run_on_one_rank(
    comm: Communicator, leader: int, verb: str, work: Generator[None, None, T]
) -> T:
    """Do something on one rank, and tell all how it ended; collective.

    Whenever the work yields, the other ranks are told that it goes on: none waits for all of it
    with one deadline.

    Parameters
    ----------
    comm : Communicator
    leader : int
        The rank that works.
    verb : str
        The call, for messages.
    work : generator
        Run on the leader alone; what it returns goes to all ranks, so it must be picklable.

    Raises
    ------
    CheckpointError
        On every rank, when the work fails on the leader, in whatever way.
    UsageError
        On every rank, when the leader says that the call is wrong.
    """
    label = f"{verb} on rank {leader}"
    state, failure = _GOES_ON, None
    result: Any = None
    # Closed also when a rank is lost meanwhile: the work may have something to put away.
    with closing(work):
        while state == _GOES_ON:
            word, failure = _step(comm, verb, work) if comm.rank == leader else (None, None)
            state, result = comm.control.broadcast(word, leader, label)
    if state == _ENDED:
        ended: T = result
        return ended
    kind, text = result
    raise failure or kind(text)


def _step(comm: Communicator, verb: str, work: Generator[None, None, Any]) -> Any:
    """Work until the next yield; what to tell of it, and what to raise here."""
    try:
        next(work)
    except StopIteration as end:
        return (_ENDED, end.value), None
    except UsageError as error:
        return _failed(error)
    except (CommError, ContractError):
        raise
    except Exception as error:
        where = f"{verb} on rank {comm.rank} of {comm.size} (host {socket.gethostname()})"
        text = str(error) if isinstance(error, CheckpointError) else reason(error)
        failure = CheckpointError(f"{where}: {text}")
        failure.__cause__ = error
        return _failed(failure)
    return (_GOES_ON, None), None


def _failed(failure: Exception) -> Any:
    """The word of a failure, without its cause, which other ranks might not be able to load."""
    return (_FAILED, (type(failure), str(failure))), failure
