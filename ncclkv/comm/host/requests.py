"""Requests: messages over MPI, each with the request that MPI made for it."""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from ncclkv.comm.host.peer_processes import PeerProcesses
from ncclkv.comm.transport import PeerFailed, Request, WrongLength
from ncclkv.comm.types import Buffer

if TYPE_CHECKING:
    from mpi4py import MPI


def failed(peer: int, error: Exception) -> PeerFailed:
    """Return the error to raise when MPI reports one about a message to or from a peer."""
    # MPICH's first line is always "Other MPI error"; its last line has the cause.
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return PeerFailed(peer, lines[-1] if lines else type(error).__name__)


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
            self._peers.failed.add(self.peer)
            raise failed(self.peer, error) from error

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
        count, expected = status.Get_count(self._mpi.BYTE), self._into.size
        if count != expected:
            # Received all the same, into separate memory: the sender may be waiting for that.
            self._into = np.empty(count, np.uint8)
        self._request = message.Irecv([self._into, self._mpi.BYTE])
        if count != expected:
            raise WrongLength(self._comm.Get_rank(), self.peer, count, expected)
        return self._request
