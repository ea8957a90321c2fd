"""What a wait that lasts looks at: whose calls differ, who has left, and the deadline."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ncclkv.comm.calls import Calls
from ncclkv.comm.transport import Transport
from ncclkv.errors import CommTimeout, KVStoreError, OrderMismatch, RankLost

if TYPE_CHECKING:
    from ncclkv.comm.work import Flight, HostWork

# A rank that waits for one that has left may be waited for itself, and cannot say so: so long is
# waited for it when another rank is known to have left.
_RELAY_SECONDS = 0.3

# A wait that is longer looks at what the others have called, and again each time as long.
_LONG_SECONDS = 0.25


class Lookout:
    """Finds out why a wait is in vain.

    Parameters
    ----------
    transport : Transport
    calls : Calls
    """

    def __init__(self, transport: Transport, calls: Calls) -> None:
        self._transport = transport
        self._calls = calls
        self._where = f"rank {transport.rank} of {transport.size}: "

    def trouble(self, flight: Flight, work: HostWork, waited: float) -> KVStoreError | None:
        """What to raise when ranks' calls differ, or one that `work` needs has left."""
        departed = self._transport.departed()
        found = self._difference(work, flight.missing(work), waited)
        if found is not None:
            self._calls.tell()
            return found
        relayed = flight.relayed and waited > _RELAY_SECONDS
        if not departed or not (relayed or not flight.missing(work).isdisjoint(departed)):
            return None
        flight.progress()  # what it sent before it left still counts
        missing = flight.missing(work)
        lost = departed.keys() if relayed and missing else missing & departed.keys()
        if not lost:
            return None
        rank = min(lost, key=lambda rank: (_follows(departed[rank]), rank))
        return self._left(rank, departed[rank], work)

    def _difference(self, work: HostWork, missing: set[int], waited: float) -> OrderMismatch | None:
        """How the calls of ranks differ; who is missing is asked, once a wait is long."""
        found = self._calls.found()
        if found is not None or waited < _LONG_SECONDS * (work.asked + 1):
            return found
        if not work.asked:
            self._calls.ask(missing)
        work.asked += 1
        return self._calls.look()

    def _left(self, rank: int, reason: str, work: HostWork) -> KVStoreError:
        """What to raise when a rank has left for that reason."""
        if reason.startswith(OrderMismatch.__name__):
            return OrderMismatch(f"{self._where}rank {rank} left with {reason}")
        return RankLost(
            f"{self._where}rank {rank} left while {work} waited for it; it said: {reason}"
        )

    def late(self, work: HostWork, missing: set[int], waited: float, limit: float) -> CommTimeout:
        """What to raise when a wait has lasted too long."""
        known = self._calls.last(missing)
        return CommTimeout(
            f"{self._where}{work} waited {waited:.1f} s (timeout {limit:g} s) for "
            f"{_ranks(missing)}; all ranks must make the same calls in the same order: look at "
            f"what {_ranks(missing)} did instead{'; ' if known else ''}{known}"
        )


def _follows(reason: str) -> bool:
    """Whether a rank left because another had."""
    return reason.startswith(RankLost.__name__)


def _ranks(ranks: set[int]) -> str:
    """``rank 2`` or ``ranks 1, 3``."""
    names = ", ".join(str(rank) for rank in sorted(ranks))
    return f"rank {names}" if len(ranks) == 1 else f"ranks {names}"
