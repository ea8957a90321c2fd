"""Work of a single rank: the other ranks wait for it, and all ranks get its outcome."""

from __future__ import annotations

import socket
from collections.abc import Callable, Generator
from contextlib import closing
from typing import Any, TypeVar

from ncclkv.checkpoint.directory import reason
from ncclkv.comm.base import Communicator
from ncclkv.errors import CheckpointError, CommError, ContractError, UsageError

T = TypeVar("T")

RUNNING, ENDED, FAILED = "running", "ended", "failed"
"""States of a work."""

_ASSIST = "assist"


class FailedOnRank(Exception):
    """The failure of a work of several ranks, which all ranks have received.

    Attributes
    ----------
    failure : Exception
        The error for the program; its text names the rank.
    """

    def __init__(self, failure: Exception) -> None:
        super().__init__(str(failure))
        self.failure = failure


def run_on_one_rank(
    comm: Communicator,
    leader: int,
    verb: str,
    work: Generator[None, None, T],
    assist: Callable[[Any], object] | None = None,
) -> T:
    """Run work on one rank, and return or raise its outcome on all ranks; collective.

    The leader sends a message whenever the work yields.  So the deadline of the other ranks is for
    a part of the work, not for all of it.

    Parameters
    ----------
    comm : Communicator
    leader : int
        The rank that does the work.
    verb : str
        The call, for messages.
    work : generator
        Run on the leader alone.  Its result is sent to all ranks, and must be picklable.
    assist : callable, optional
        Called on the other ranks with each argument of `request_assistance`.  If it raises
        `FailedOnRank`, the leader's part has raised it, too, and the work ends with this failure.

    Raises
    ------
    CheckpointError
        On every rank, when the work fails on the leader, or on a rank that assists.
    UsageError
        On every rank, when the work raises it on such a rank.
    """
    state, failure = RUNNING, None
    result: Any = None
    # Closed also when a rank is lost during the work, which may have files to remove.
    with closing(work):
        while state in (RUNNING, _ASSIST):
            message = None
            if comm.rank == leader:
                message, failure = advance(comm, verb, work)
            state, result = comm.control.broadcast(message, leader, _label(verb, leader))
            if state == _ASSIST and assist is not None:
                try:
                    assist(result)
                except FailedOnRank as error:
                    failure = error.failure
    if state == ENDED:
        ended: T = result
        return ended
    kind, text = result
    raise failure or kind(text)


def request_assistance(comm: Communicator, leader: int, verb: str, argument: Any) -> None:
    """Let the other ranks call `assist` of `run_on_one_rank`; the leader calls this in its work.

    The leader then takes its own part of the collectives that `assist` launches.
    """
    comm.control.broadcast((_ASSIST, argument), leader, _label(verb, leader))


def _label(verb: str, leader: int) -> str:
    """Return the label of the leader's messages."""
    return f"{verb} on rank {leader}"


def advance(
    comm: Communicator, verb: str, work: Generator[None, None, Any]
) -> tuple[tuple[str, Any], Exception | None]:
    """Work until the next yield; return the message for all ranks, and the error of this rank.

    The message is `RUNNING` with None, `ENDED` with the result, or `FAILED` with the type and text
    of the error.
    """
    try:
        next(work)
    except StopIteration as end:
        return (ENDED, end.value), None
    except FailedOnRank as error:
        return _failed(error.failure)
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
    return (RUNNING, None), None


def _failed(failure: Exception) -> tuple[tuple[str, Any], Exception]:
    """Return the message of a failure without its cause, which peers may fail to unpickle."""
    return (FAILED, (type(failure), str(failure))), failure
