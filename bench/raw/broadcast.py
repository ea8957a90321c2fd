"""Every rank gets the root's array.  The communicator's broadcast is in place."""

from __future__ import annotations

import numpy as np

from bench.data import addend
from bench.job import Job
from bench.raw.collective import STEP, Collective, Views
from ncclkv.comm.base import Communicator
from ncclkv.comm.types import Buffer, Work


class Broadcast(Collective):
    name = "broadcast"
    root = 0
    halves = (True,)

    def factor(self, size: int) -> float:
        return 1.0

    def views(self, first: Buffer, second: Buffer, in_place: bool, rank: int, size: int) -> Views:
        return first, first

    def launch(self, comm: Communicator, send: Buffer, receive: Buffer) -> Work:
        return comm.broadcast(receive, self.root)

    def fill(self, job: Job, send: Buffer) -> None:
        if job.comm.rank == self.root:
            job.pattern.fill(send, addend(self.root, STEP))
        else:
            send.fill(np.nan)

    def wrong(self, job: Job, receive: Buffer) -> int:
        return job.pattern.wrong(receive, 1, addend(self.root, STEP))
