"""Requests: messages over MPI, each with the request that MPI made for it."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from ncclkv.comm.host.peer_processes import PeerProcesses
from ncclkv.comm.transport import PeerFailed, Request, WrongLength
from ncclkv.comm.types import Buffer
from ncclkv.errors import CommAborted, CommError

if TYPE_CHECKING:
    from mpi4py import MPI


BLOCK = 2**31 - 1
"""Largest count of an MPI older than MPI-4; a longer message has blocks of so many bytes."""

_OF_ARGUMENTS = ("ERR_ARG", "ERR_BUFFER", "ERR_COUNT", "ERR_RANK", "ERR_TAG", "ERR_TYPE")
"""Classes of MPI's errors about a call of this rank, whatever its peer does."""


def begin(
    start: Callable[..., MPI.Request], data: Buffer, mpi: ModuleType, *arguments: int
) -> MPI.Request:
    """Start a message of bytes of any length by ``start(message, *arguments)`` of MPI."""
    if data.size <= BLOCK:
        return start([data, mpi.BYTE], *arguments)
    blocks, rest = divmod(data.size, BLOCK)
    block = mpi.BYTE.Create_contiguous(BLOCK)
    whole = mpi.Datatype.Create_struct([blocks, rest], [0, blocks * BLOCK], [block, mpi.BYTE])
    try:
        return start([data, 1, whole.Commit()], *arguments)
    finally:  # MPI keeps the types until the request is complete
        whole.Free()
        block.Free()


def failed(
    peer: int, error: MPI.Exception, peers: PeerProcesses, mpi: ModuleType
) -> CommError | PeerFailed:
    """Return the error to raise when MPI reports one about a message to or from a peer.

    Record the peer in `peers`, unless this rank's own call is wrong.
    """
    # MPICH's first line is always "Other MPI error"; its last line has the cause.
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[-1] if lines else type(error).__name__
    if error.Get_error_class() in [getattr(mpi, name) for name in _OF_ARGUMENTS]:
        return CommAborted(f"MPI refuses a message to or from rank {peer}: {text}")
    peers.failed.add(peer)
    return PeerFailed(peer, text)


class Message(Request):
    """A message to or from a peer.

    Parameters
    ----------
    peer : int
    peers : PeerProcesses
        Records the peers about whose messages MPI has reported an error.
    mpi : module
        ``mpi4py.MPI``: an import in each poll would take as long as the poll.
    request : mpi4py.MPI.Request or None
        None until MPI can make the request.
    """

    def __init__(
        self,
        peer: int,
        peers: PeerProcesses,
        mpi: ModuleType,
        request: MPI.Request | None = None,
    ) -> None:
        self.peer = peer
        self._peers = peers
        self._mpi = mpi
        self._request = request

    def done(self) -> bool:
        self._peers.warn_of_loss()
        try:
            request = self._request or self._begin()
            return request is not None and bool(request.Test())
        except self._mpi.Exception as error:
            raise failed(self.peer, error, self._peers, self._mpi) from error

    def _begin(self) -> MPI.Request | None:
        """Return the request, once MPI can make it."""
        return self._request


class Incoming(Message):
    """A message from a peer, whose length is checked before it is received.

    Some MPIs write past the end of a buffer that is shorter than the message: Open MPI 5.0 does.
    """

    def __init__(
        self,
        comm: MPI.Comm,
        into: Buffer,
        peer: int,
        tag: int,
        peers: PeerProcesses,
        mpi: ModuleType,
    ) -> None:
        super().__init__(peer, peers, mpi)
        self._comm = comm
        self._into = into
        self._tag = tag

    def _begin(self) -> MPI.Request | None:
        status = self._mpi.Status()
        message = self._comm.Improbe(self.peer, self._tag, status)
        if message is None:
            return None
        # Elements, because a count has no more than 31 bits in some MPIs.
        count, expected = status.Get_elements(self._mpi.BYTE), self._into.size
        if count != expected:
            # Received all the same, into separate memory: the sender may be waiting for that.
            self._into = np.empty(count, np.uint8)
        self._request = begin(message.Irecv, self._into, self._mpi)
        if count != expected:
            raise WrongLength(self._comm.Get_rank(), self.peer, count, expected)
        return self._request
