"""Order check: all ranks launch the same collectives, which NCCL itself does not check.

A launch after new calls submits a barrier of the hosts that carries the digest of these calls.  The
launch does not wait for the barrier: later launches poll it, and a wait of the host waits for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection

from ncclkv.comm.base import Communicator
from ncclkv.comm.diagnosis import stall, waits
from ncclkv.comm.diagnosis.mismatch import CallComparison, is_due
from ncclkv.comm.diagnosis.reports import format_ranks
from ncclkv.comm.nccl.waiting import Deadline
from ncclkv.comm.types import Work
from ncclkv.errors import OrderMismatch


class OrderCheck:
    """Barriers that one rank has submitted, and the mismatch that they find.

    Parameters
    ----------
    peers : Communicator
        The same ranks in host memory.

    Attributes
    ----------
    others : list of int
        All ranks but this one.
    """

    def __init__(self, peers: Communicator) -> None:
        self._peers = peers
        self._submitted = peers.digest.value
        self._works: deque[Work] = deque()
        self._looks = 0
        self.others = [rank for rank in range(peers.size) if rank != peers.rank]

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
        self._drop_done()
        if self._peers.digest.value == self._submitted:
            return
        self._submitted = self._peers.digest.value
        work = self._peers.barrier()
        work.label = what
        self._works.append(work)

    def _drop_done(self) -> None:
        """Remove complete barriers; raise the error of one that failed."""
        while self._works and self._works[0].done():
            self._works.popleft()

    def begin(self) -> None:
        """Begin a wait: the peers' calls are due for a look soon."""
        self._show_no_wait()
        self._looks = 0

    def poll(self, deadline: Deadline, what: str) -> OrderMismatch | None:
        """Return the first difference between the ranks' calls, if any; report a long wait.

        Parameters
        ----------
        deadline : Deadline
            Deadline of the wait.
        what : str
            The collective that waits, for messages.
        """
        self._drop_done()
        calls = self._peers.calls
        if calls is None:
            return None
        found = calls.compare_reports()
        if found is None and is_due(deadline.waited, self._looks):
            calls.recorder.record_wait(self.others, what, deadline.waited)
            calls.request_reports(self.others, self._looks)
            self._looks += 1
            found = calls.compare_pages()
        if found is not None:
            calls.notify(str(found))
        elif stall.is_due(deadline.waited, deadline.limit, deadline.reported):
            deadline.reported += 1
            self._report(calls, deadline, what)
        return found

    def _report(self, calls: CallComparison, deadline: Deadline, what: str) -> None:
        """Write a line about a long wait, unless a lower rank of this node does."""
        calls.recorder.record_wait(self.others, what, deadline.waited)
        # NCCL does not name the missing rank; a rank that shows no wait of its own may be missing.
        ends = waits.chain_ends(calls, self.others)
        if not waits.is_reported(calls, deadline.waited):
            words = f"{what} waits for {format_ranks(ends)}, or for the network"
            rank, size = self._peers.rank, self._peers.size
            stall.write_line(
                rank, size, words, deadline.waited, deadline.limit, calls.describe_calls(ends)
            )

    def _show_no_wait(self) -> None:
        """Clear the wait that this rank shows to its peers."""
        if self._looks and self._peers.calls is not None:
            self._peers.calls.recorder.clear_wait()

    def dead(self) -> set[int]:
        """Return the ranks of this node whose processes have ended."""
        calls = self._peers.calls
        return set() if calls is None else calls.ended_ranks()

    def last(self, ranks: Collection[int]) -> str:
        """Describe the last calls of `ranks`, as far as this rank has received them."""
        calls = self._peers.calls
        return "" if calls is None else calls.describe_calls(ranks)

    def drain(self, timeout: float) -> None:
        """Wait until all submitted digests are compared."""
        self._show_no_wait()
        while self._works:
            self._works.popleft().wait(timeout)
