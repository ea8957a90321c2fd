"""The program of one rank, and the error that a program of several ranks raises."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from ncclkv.comm.host import threads
from ncclkv.comm.host.communicator import HostCommunicator
from ncclkv.errors import CommError, annotate
from ncclkv.tracebacks import trim_begin

Result = TypeVar("Result")


def run_as_rank(communicator: HostCommunicator, body: Callable[[], Result]) -> Result:
    """Run a function as the rank of a communicator; the other ranks hear how it ended."""
    threads.become(communicator)
    try:
        result = body()
        threads.leave(communicator)
    except BaseException as error:
        trim_begin(error)
        communicator.abort(f"{type(error).__name__}: {error}")
        raise
    return result


def first_error(errors: Mapping[int, BaseException], size: int) -> BaseException | None:
    """Return the error that caused the others, with its rank in the text; None without errors."""
    if not errors:
        return None
    causes = {rank: each for rank, each in errors.items() if not isinstance(each, CommError)}
    rank, error = min((causes or errors).items())
    annotate(error, f"on rank {rank} of {size}")
    return error
