"""Exchange of small objects between the ranks of a test job.

The messages use a communicator of their own, so they never meet messages of the code under test.
Each rank sends to each other rank, so a rank that others wait for can be named.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from mpi4py import MPI

from tests.harness.limit import LAST_WORDS
from tests.harness.slow import stretched

PATIENCE = stretched(10.0)
"""Seconds that a rank whose test failed waits for ranks that may be stuck as a result."""


class Exchange:
    """All ranks of the job, as the test harness addresses them.

    Parameters
    ----------
    say : callable
        Writes a text that the reader of the run sees at once.

    Attributes
    ----------
    rank, size : int
        This rank, and the count of ranks.
    name : str
        Both, as in "rank 2 of 4".
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._comm = MPI.COMM_WORLD.Dup()
        self._say = say
        self._missing: set[int] = set()
        self.rank: int = self._comm.rank
        self.size: int = self._comm.size
        self.name = f"rank {self.rank} of {self.size}"

    def everyone(self, item: Any, failure: str = "") -> list[Any]:
        """Send `item` to every rank, and return every rank's item, in rank order.

        A rank with a `failure` ends the job with that text if the others do not arrive. A rank
        without one waits until the time limit of the test, and then names the ranks it waits for.
        """
        peers = [rank for rank in range(self.size) if rank != self.rank]
        sending = [self._comm.isend(item, rank) for rank in peers]
        items = {self.rank: item}
        self._missing = set(peers)
        deadline = time.monotonic() + PATIENCE
        pause = 0.0
        while self._missing:
            for rank in sorted(self._missing):
                if self._comm.iprobe(rank):
                    items[rank] = self._comm.recv(source=rank)
                    self._missing.discard(rank)
            if self._missing and failure and time.monotonic() > deadline:
                self.abort(f"{self.waiting()}, maybe in vain, because {failure}")
            time.sleep(pause)
            pause = min(pause + 2e-5, 1e-3)
        MPI.Request.waitall(sending)
        return [items[rank] for rank in range(self.size)]

    def waiting(self) -> str:
        """Describe the ranks that this rank waits for; empty if it waits for none."""
        if not self._missing:
            return ""
        return f"done here, waiting for rank {', '.join(map(str, sorted(self._missing)))}"

    def abort(self, text: str) -> None:
        """Print `text` and end the job."""
        self._say(text)
        # An mpirun that is ending a job may drop the ranks' last output.
        time.sleep(LAST_WORDS)
        MPI.COMM_WORLD.Abort(1)
        # Some MPIs return from MPI_Abort, and kill the process a moment later.
        os._exit(1)
