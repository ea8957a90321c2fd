"""Order check: all ranks launch the same collectives, which NCCL itself does not check.

A launch after new calls submits a barrier of the hosts that carries the digest of these calls.  The
launch does not wait for the barrier: later launches and the watcher poll it, and a wait of the host
waits for it.
"""

from __future__ import annotations

from collections import deque

from ncclkv.comm.base import Communicator
from ncclkv.comm.types import Work


class OrderCheck:
    """Barriers of the hosts that one rank has submitted.

    Parameters
    ----------
    peers : Communicator
        The same ranks in host memory.
    """

    def __init__(self, peers: Communicator) -> None:
        self._peers = peers
        self._submitted = peers.digest.value
        self._works: deque[Work] = deque()

    def submit(self, what: str) -> None:
        """Begin to compare digests, if this rank has made calls since the last launch.

        Parameters
        ----------
        what : str
            The collective, for messages.

        Raises
        ------
        OrderMismatch
            When an earlier comparison found a difference.
        """
        self.poll()
        if self._peers.digest.value == self._submitted:
            return
        self._submitted = self._peers.digest.value
        work = self._peers.barrier()
        work.label = what
        self._works.append(work)

    def poll(self) -> bool:
        """Advance the barriers, and remove complete ones; raise the error of one that failed.

        Returns
        -------
        bool
            Whether all are complete.
        """
        while self._works and self._works[0].done():
            self._works.popleft()
        return not self._works

    def drain(self, timeout: float) -> None:
        """Wait until all submitted digests are compared."""
        while self._works:
            self._works.popleft().wait(timeout)
