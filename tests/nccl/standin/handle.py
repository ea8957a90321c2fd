"""A communicator as the binding's callers hold it: what it may still be used for, and by whom."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from ncclkv.comm.base import Communicator
from tests.nccl.standin.contract import ContractBroken


@dataclass(eq=False)
class Handle:
    """One rank's end.

    Attributes
    ----------
    host : Communicator
        What moves the stand-in's data between the same ranks.
    launched, started, completed : int
        Collectives whose group has ended, those that have told the other ranks so, and those that
        have written their outputs.
    graphs : set of str
        Those that have its collectives, and have not been freed.
    hung : int or None
        From which collective on this rank never comes.
    """

    name: str
    host: Communicator
    hung: int | None = None
    launched: int = 0
    started: int = 0
    completed: int = 0
    ended: str = ""
    streams: set[int] = field(default_factory=set)
    graphs: set[str] = field(default_factory=set)
    thread: int = field(default_factory=threading.get_ident)

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
        """Refuse use after the end, and by two threads."""
        if self.ended:
            raise ContractBroken(
                f"{what} of {self.name} on rank {self.rank}, which was {self.ended}"
            )
        if threading.get_ident() != self.thread:
            raise ContractBroken(
                f"{what} of {self.name} on rank {self.rank} by a thread other than the one that "
                f"created it; one thread issues all its calls"
            )

    def check_graphs(self, what: str) -> None:
        """Refuse what waits until no graph has a collective of it."""
        if self.graphs:
            raise ContractBroken(
                f"{what} of {self.name} on rank {self.rank} while there is {sorted(self.graphs)[0]}"
                f" with its collectives, for whose end NCCL waits; free the graph first"
            )

    def may_start(self, number: int) -> bool:
        """Whether a collective's turn has come: one after the other, on every rank alike."""
        return number <= self.started and (self.hung is None or number < self.hung)
