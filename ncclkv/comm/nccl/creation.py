"""Creation of an NCCL communicator by all ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeVar

from ncclkv import env
from ncclkv.comm.base import Communicator
from ncclkv.comm.diagnosis.reports import format_ranks
from ncclkv.comm.nccl.binding import Binding, Handle
from ncclkv.comm.nccl.diagnosis import cause
from ncclkv.errors import KVStoreError, LaunchError, RankDied, RankLost

Result = TypeVar("Result")


def create(peers: Communicator, binding: Binding, settings: Mapping[str, str]) -> Handle:
    """Create an NCCL communicator of the ranks of `peers`; collective.

    Parameters
    ----------
    peers : Communicator
        The ranks in host memory.
    binding : Binding
    settings : mapping of str to str
        Variables of NCCL, set during the creation.

    Raises
    ------
    LaunchError
        When NCCL refuses.
    RankLost, RankDied
        When a rank has failed to create its end, or its process has ended.
    CommTimeout
        When a rank does not join.
    """
    with env.temporarily(settings):
        return _create(peers, binding)


def _create(peers: Communicator, binding: Binding) -> Handle:
    """Create the communicator, with the settings in the environment."""
    begun = _attempt(binding.unique_id) if peers.rank == 0 else None
    unique_id, problem = peers.control.broadcast(begun, 0, "the id of a communicator")
    if problem is not None:
        raise LaunchError(f"rank 0 of {peers.size} could not begin a communicator: {problem}")
    try:
        return binding.create(peers.size, unique_id, peers.rank, partial(_check, peers))
    except KVStoreError as error:
        peers.abort(f"{type(error).__name__}: {error}")
        raise type(error)(f"rank {peers.rank} of {peers.size}: {error}") from error


def _check(peers: Communicator) -> None:
    """Raise an error if a rank that NCCL waits for cannot join."""
    departed = peers.left_ranks()
    if departed:
        rank, reason = cause(departed)
        raise RankLost(f"rank {rank} left while NCCL connected the ranks; it said: {reason}")
    dead = set() if peers.calls is None else peers.calls.ended_ranks()
    if dead:
        raise RankDied(
            f"{format_ranks(dead)} ended while NCCL connected the ranks, and said nothing"
        )


def _attempt(call: Callable[[], Result]) -> tuple[Result | None, str | None]:
    """Return a call's result, and the text of its error."""
    try:
        return call(), None
    except KVStoreError as error:
        return None, str(error)
