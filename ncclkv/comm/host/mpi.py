"""`MpiTransport`: messages between ranks by MPI, on a communicator of the store's own."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING, cast

import numpy as np

from ncclkv import env
from ncclkv.comm import backoff
from ncclkv.comm.backoff import Backoff
from ncclkv.comm.host import window
from ncclkv.comm.host.alone import library_name
from ncclkv.comm.host.mpi_groups import common_ranks
from ncclkv.comm.host.peer_processes import PeerProcesses
from ncclkv.comm.host.requests import Incoming, Message, begin, failed
from ncclkv.comm.transport import PeerFailed, Request, Transport
from ncclkv.comm.types import Buffer
from ncclkv.errors import CommAborted, KVStoreError
from ncclkv.system import watchdog

if TYPE_CHECKING:
    from mpi4py import MPI

_NOTICE_TAG = 1
_FAREWELL, _POSTED = b"f", b"n"
"""Kinds of notices; a notice begins with its transport's token, then its kind."""

# MPI may give the context of a freed communicator to a new one, which then receives the old
# notices that were left.
_TOKEN_BYTES = 8

_FAREWELL_BYTES = 512
_FAREWELL_SECONDS = 1.0

# Kept here until closed: at the end of the process a dropped store must still send its farewell.
_open: set[MpiTransport] = set()


class MpiTransport(Transport):
    """One rank's end of a private MPI communicator.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm
        Owned by this object: no other code may send on it.
    timeout : float
        Seconds that MPI may take to make communicators and windows for these ranks.
    says_farewell : bool
        Whether `leave_all` sends a farewell on it.

    Attributes
    ----------
    peers : PeerProcesses
    """

    spin_limit = backoff.YIELDS // 2

    def __init__(self, comm: MPI.Comm, timeout: float, *, says_farewell: bool = True) -> None:
        from mpi4py import MPI

        self._comm = comm
        self._timeout = timeout
        self._mpi = MPI
        self.thread_multiple = MPI.Query_thread() == MPI.THREAD_MULTIPLE
        comm.Set_errhandler(MPI.ERRORS_RETURN)
        self.rank, self.size = comm.Get_rank(), comm.Get_size()
        self.name = library_name(MPI.Get_library_version())
        with self._guard():
            machine = comm.Split_type(MPI.COMM_TYPE_SHARED, self.rank)
            on_machine = machine.allgather(self.rank)
            machine.Free()
            self.node = env.split_node(on_machine, self.rank)
            self.peers = PeerProcesses(comm, on_machine, self.name)
            self._token = comm.bcast(os.urandom(_TOKEN_BYTES))
        self._where = f"rank {self.rank}"
        self._departed: dict[int, str] = {}
        self.inbox = []
        self._posted: list[Request] = []
        self._closed = False
        if says_farewell:
            _open.add(self)

    def _guard(self) -> AbstractContextManager[None]:
        """Return a block with a deadline, for calls of MPI that wait for all ranks."""
        return watchdog.guard("making an MPI communicator or window", self._timeout)

    def send(self, data: Buffer, peer: int, tag: int) -> Request:
        self._check()
        # MPICH over UCX crashes in a message to a process of another machine that has ended.
        if self.peers.has_ended(peer):
            raise PeerFailed(peer)
        try:
            request = begin(self._comm.Isend, data, self._mpi, peer, tag)
        except self._mpi.Exception as error:
            raise failed(peer, error, self.peers, self._mpi) from error
        return Message(peer, self.peers, self._mpi, request)

    def receive(self, into: Buffer, peer: int, tag: int) -> Request:
        self._check()
        return Incoming(self._comm, into, peer, tag, self.peers, self._mpi)

    def has_ended(self, peer: int) -> bool:
        return self.peers.has_ended(peer)

    def ranks_in(self, comm: MPI.Intracomm) -> list[int]:
        """Return the ranks of this transport that are in another MPI communicator, too."""
        return common_ranks(self._comm, comm)

    def _check(self) -> None:
        """Refuse to use MPI after its end: MPI would kill the process."""
        if self._mpi.Is_finalized():
            raise CommAborted(
                f"{self._where} of {self.size}: MPI was finalized while the store was open; "
                f"close stores before MPI.Finalize()"
            )

    def pause(self, attempt: int) -> None:
        backoff.pause(attempt)

    def notify(self) -> None:
        # Processes need no wake-up; but without MPI this rank could send no farewell at its end.
        if self._mpi.Is_finalized():
            self._check()

    def windows_left(self) -> int:
        return window.left()

    def window(self, nbytes: int) -> list[Buffer]:
        with self._guard():
            try:
                node = cast("MPI.Intracomm", self._comm.Split(self.node[0], self.rank))
            except self._mpi.Exception as error:
                raise OSError(str(no_communicator(self._where, error))) from error
            try:
                return window.window(node, nbytes)
            finally:
                node.Free()

    def left_ranks(self) -> dict[int, str]:
        self._check()
        self.peers.warn_of_loss()
        status = self._mpi.Status()
        try:
            while self._comm.Iprobe(self._mpi.ANY_SOURCE, _NOTICE_TAG, status):
                peer = status.Get_source()
                notice = np.empty(status.Get_count(self._mpi.BYTE), np.uint8)
                self._comm.Recv([notice, self._mpi.BYTE], peer, _NOTICE_TAG)
                self._keep(peer, notice.tobytes())
        except self._mpi.Exception as error:
            # MPI does not name the peer.  The end of a process is detected without MPI.
            if not any(self.peers.has_ended(peer) for peer in range(self.size)):
                raise CommAborted(f"{self._where}: MPI reports: {error}") from error
        return self._departed

    def _keep(self, peer: int, notice: bytes) -> None:
        """Keep a notice of a peer; drop one that was sent on an earlier communicator."""
        if not notice.startswith(self._token):
            return
        kind, content = notice[_TOKEN_BYTES : _TOKEN_BYTES + 1], notice[_TOKEN_BYTES + 1 :]
        if kind == _POSTED:
            self.inbox.append((peer, content))
        else:
            self._departed[peer] = content.decode(errors="replace")

    def post(self, data: bytes, peers: Iterable[int]) -> None:
        self._posted = [message for message in self._posted if not _is_over(message)]
        self._posted += self._send_notices(_POSTED + data, peers)

    def _send_notices(self, data: bytes, peers: Iterable[int]) -> list[Request]:
        """Start to send a notice to each peer that may still receive it."""
        notice = np.frombuffer(self._token + data, np.uint8)
        after_failure = bool(self._departed)
        sent = []
        for peer in peers:
            if self.peers.may_notify(peer, after_failure=after_failure):
                with suppress(PeerFailed):
                    sent.append(self.send(notice, peer, _NOTICE_TAG))
        return sent

    def leave(self, reason: str) -> None:
        if self._closed or self._mpi.Is_finalized():
            return
        short = reason.encode(errors="backslashreplace")[:_FAREWELL_BYTES]
        self._closed = True
        _open.discard(self)
        peers = [peer for peer in range(self.size) if peer != self.rank]
        messages = [*self._posted, *self._send_notices(_FAREWELL + short, peers)]
        # Short messages are sent at once; a dead peer may never receive its own.
        for _ in Backoff(_FAREWELL_SECONDS):
            if all(map(_is_over, messages)):
                break

    def split(self, color: int, key: int) -> Transport:
        try:
            with self._guard():
                part = self._comm.Split(color, key)
            return MpiTransport(part, self._timeout)
        except self._mpi.Exception as error:
            raise no_communicator(self._where, error) from error

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            _open.discard(self)
            self._comm.Free()


def _is_over(message: Request) -> bool:
    """Return whether a notice is sent, or can never be sent."""
    try:
        return message.done()
    except (PeerFailed, KVStoreError):
        return True


def no_communicator(where: str, error: Exception) -> CommAborted:
    """Return the error to raise when MPI makes no communicator."""
    return CommAborted(
        f"{where}: MPI cannot make a communicator for the store; some MPIs allow about 2000 at "
        f"once: close stores after use, and free other communicators. MPI reports: {error}"
    )


def leave_all(reason: str) -> None:
    """Send a farewell with the reason on every open transport; wait until it is sent."""
    for transport in list(_open):
        transport.leave(reason)
