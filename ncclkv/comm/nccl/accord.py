"""That ranks launch the same: NCCL does not look, so the hosts do, beside it.

A launch after new calls posts a barrier of the hosts, which carries the mark of these calls, and
waits for nothing.  It is looked at by later launches, and waited for where the host waits.
"""

from __future__ import annotations

from collections import deque

from ncclkv.comm.base import Communicator, Work
from ncclkv.errors import OrderMismatch

_LOOK_SECONDS = 0.25


class Accord:
    """What one rank has posted.

    Parameters
    ----------
    peers : Communicator
        The same ranks in host memory.
    """

    def __init__(self, peers: Communicator) -> None:
        self._peers = peers
        self._posted = peers.mark.value
        self._works: deque[Work] = deque()
        self._looks = 0

    def post(self, what: str) -> None:
        """Compare marks, some time after this launch.

        Raises
        ------
        OrderMismatch
            Of an earlier one.
        """
        self._drop_done()
        if self._peers.mark.value == self._posted:
            return
        self._posted = self._peers.mark.value
        work = self._peers.barrier()
        work.label = what
        self._works.append(work)

    def _drop_done(self) -> None:
        while self._works and self._works[0].done():
            self._works.popleft()

    def look(self, waited: float) -> OrderMismatch | None:
        """How ranks' calls differ, as far as can be seen after a wait of so many seconds."""
        self._drop_done()
        calls = self._peers.calls
        if calls is None:
            return None
        found = calls.found()
        if found is None and waited > _LOOK_SECONDS * (self._looks + 1):
            if not self._looks:
                calls.ask([rank for rank in range(self._peers.size) if rank != self._peers.rank])
            self._looks += 1
            found = calls.look()
        if found is not None:
            calls.tell(str(found))
        return found

    def settle(self, timeout: float) -> None:
        """Wait until all that was posted has been compared."""
        self._looks = 0
        while self._works:
            self._works.popleft().wait(timeout)
