"""A communicator in the form of a handle: its state, its thread and its graphs."""

from __future__ import annotations

from dataclasses import dataclass, field

from ncclkv import concurrency
from ncclkv.comm.base import Communicator
from tests.nccl.standin.errors import RefusedByStandIn


@dataclass(eq=False)
class Handle:
    """One rank's end of a communicator.

    Attributes
    ----------
    host : Communicator
        Communicator that moves the stand-in's data between the same ranks.
    launched, started, completed : int
        Counts of collectives whose group has ended, that have sent their call, and that have
        written their outputs.
    lent : bool
        Whether other threads may use it, one at a time.
    graphs : set of str
        Graphs with collectives of this communicator that are not freed.
    hung : int or None
        Index of the first collective at which this rank does not arrive.
    hangs : bool
        Whether calls that differ between ranks hang; else they are refused.
    """

    name: str
    host: Communicator
    hung: int | None = None
    hangs: bool = False
    launched: int = 0
    started: int = 0
    completed: int = 0
    ended: str = ""
    lent: bool = False
    streams: set[int] = field(default_factory=set)
    graphs: set[str] = field(default_factory=set)
    thread: int = field(default_factory=lambda: concurrency.get_ident())

    @property
    def rank(self) -> int:
        return self.host.rank

    @property
    def size(self) -> int:
        return self.host.size

    @property
    def aborted(self) -> bool:
        return self.ended == "aborted"

    def check(self, what: str) -> None:
        """Refuse use after the end, and use by two threads unless it is lent."""
        self.check_open(what)
        if concurrency.get_ident() != self.thread and not self.lent:
            raise RefusedByStandIn(
                f"{what} of {self.name} on rank {self.rank} by a thread other than the one that "
                f"created it; one thread issues all its calls"
            )

    def check_open(self, what: str) -> None:
        """Refuse use after the end."""
        if self.ended:
            raise RefusedByStandIn(
                f"{what} of {self.name} on rank {self.rank}, which was {self.ended}"
            )

    def check_graphs(self, what: str) -> None:
        """Refuse a call that waits until no graph holds a collective of this communicator."""
        if self.graphs:
            raise RefusedByStandIn(
                f"{what} of {self.name} on rank {self.rank} while there is {sorted(self.graphs)[0]}"
                f" with its collectives, for whose end NCCL waits; free the graph first"
            )

    def may_start(self, index: int) -> bool:
        """Return whether a collective may start: they run in one order on all ranks."""
        return index <= self.started and (self.hung is None or index < self.hung)
