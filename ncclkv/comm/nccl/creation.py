"""Creation of an NCCL communicator by all ranks."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from ncclkv import env
from ncclkv.comm.base import Communicator
from ncclkv.comm.nccl.binding import Binding, Handle
from ncclkv.comm.nccl.diagnosis import lost_rank
from ncclkv.errors import KVStoreError, LaunchError


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
        begun: tuple[bytes, str] = b"", ""
        if peers.rank == 0:
            try:
                begun = binding.unique_id(), ""
            except KVStoreError as error:
                begun = b"", str(error)
        unique_id, problem = peers.control.broadcast(begun, 0, "the id of a communicator")
        if problem:
            raise LaunchError(f"rank 0 of {peers.size} could not begin a communicator: {problem}")
        try:
            return binding.create(peers.size, unique_id, peers.rank, partial(_check, peers))
        except KVStoreError as error:
            peers.abort(f"{type(error).__name__}: {error}")
            raise type(error)(f"rank {peers.rank} of {peers.size}: {error}") from error


def _check(peers: Communicator) -> None:
    """Raise an error if a rank that NCCL waits for cannot join."""
    if lost := lost_rank(peers, "NCCL connected the ranks"):
        raise lost
