"""Final barrier: a barrier at the end of a process, which names the missing ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ncclkv.comm.host.mpi import MpiTransport

if TYPE_CHECKING:
    from mpi4py import MPI


class FinalBarrier:
    """The barrier of one communicator's ranks, by notices; creation is collective.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
        Owned by this object: no other code may use it.
    timeout : float
        Seconds between two reports of the late ranks.

    Attributes
    ----------
    timeout : float
        As given.
    size : int
        The count of ranks.
    peers : PeerProcesses
    """

    def __init__(self, comm: MPI.Intracomm, timeout: float) -> None:
        self.timeout = timeout
        # Without a farewell, a failed rank sends nothing to a machine that may be dead.
        self._transport = MpiTransport(comm, timeout, says_farewell=False)
        self.peers = self._transport.peers
        self.size = self._transport.size
        self._uninformed = [rank for rank in range(self.size) if rank != self._transport.rank]

    def covers(self, comm: MPI.Intracomm) -> bool:
        """Return whether all ranks of `comm` take part."""
        return len(self._transport.ranks_in(comm)) == comm.Get_size()

    def arrive(self, *, near_only: bool) -> None:
        """Notify the other ranks, or those of this machine alone, each once; return at once."""
        peers = [rank for rank in self._uninformed if not near_only or self.peers.is_near(rank)]
        if peers:
            self._uninformed = [rank for rank in self._uninformed if rank not in peers]
            self._transport.post(b"", peers)

    def late(self) -> list[int]:
        """Receive the notices that are here; return the ranks without one."""
        self._transport.left_ranks()
        arrived = {self._transport.rank, *(rank for rank, _ in self._transport.inbox)}
        return [rank for rank in range(self.size) if rank not in arrived]

    def is_first(self, *, near_only: bool = False) -> bool:
        """Return whether no lower rank has arrived, of all ranks or of this machine's."""
        late = self.late()
        return not any(
            rank not in late and (not near_only or self.peers.is_near(rank))
            for rank in range(self._transport.rank)
        )
