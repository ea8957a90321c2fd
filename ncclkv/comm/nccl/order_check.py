"""That ranks launch the same: NCCL does not look, so the hosts do, beside it.

A launch after new calls posts a barrier of the hosts, which carries the mark of these calls, and
waits for nothing.  It is looked at by later launches, and waited for where the host waits.
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
    """What one rank has posted.

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
        self._posted = peers.mark.value
        self._works: deque[Work] = deque()
        self._looks = 0
        self.others = [rank for rank in range(peers.size) if rank != peers.rank]

    def submit(self, what: str) -> None:
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

    def begin(self) -> None:
        """Note that a wait begins: others' calls are looked at soon."""
        self._show_no_wait()
        self._looks = 0

    def poll(self, watch: Deadline, what: str) -> OrderMismatch | None:
        """Return the first difference between the ranks' calls, if one shows; report a long wait.

        Parameters
        ----------
        watch : Watch
            Of the wait.
        what : str
            What waits.
        """
        self._drop_done()
        calls = self._peers.calls
        if calls is None:
            return None
        found = calls.compare_reports()
        if found is None and is_due(watch.waited, self._looks):
            calls.recorder.record_wait(self.others, what, watch.waited)
            calls.request_reports(self.others, self._looks)
            self._looks += 1
            found = calls.compare_pages()
        if found is not None:
            calls.notify(str(found))
        elif stall.is_due(watch.waited, watch.limit, watch.reported):
            watch.reported += 1
            self._report(calls, watch, what)
        return found

    def _report(self, calls: CallComparison, watch: Deadline, what: str) -> None:
        """Report a wait that lasts, unless a lower rank of this node does."""
        calls.recorder.record_wait(self.others, what, watch.waited)
        # NCCL does not tell which rank is missing; those that show no wait of their own may be.
        ends = waits.chain_ends(calls, self.others)
        if not waits.is_reported(calls, watch.waited):
            words = f"{what} waits for {format_ranks(ends)}, or for the network"
            rank, size = self._peers.rank, self._peers.size
            stall.write_line(
                rank, size, words, watch.waited, watch.limit, calls.describe_calls(ends)
            )

    def _show_no_wait(self) -> None:
        """Show that a wait that lasted is over."""
        if self._looks and self._peers.calls is not None:
            self._peers.calls.recorder.clear_wait()

    def dead(self) -> set[int]:
        """Neighbours whose processes have ended."""
        calls = self._peers.calls
        return set() if calls is None else calls.ended_ranks()

    def last(self, ranks: Collection[int]) -> str:
        """What some ranks called last, as far as is known here."""
        calls = self._peers.calls
        return "" if calls is None else calls.describe_calls(ranks)

    def drain(self, timeout: float) -> None:
        """Wait until all that was posted has been compared."""
        self._show_no_wait()
        while self._works:
            self._works.popleft().wait(timeout)
