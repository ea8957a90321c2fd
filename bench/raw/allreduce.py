"""Every rank gets the sum of all."""

from __future__ import annotations

from bench.data import addend, total
from bench.job import Job
from bench.raw.collective import STEP, Collective, Views
from ncclkv.comm.base import Communicator
from ncclkv.comm.types import Buffer, Work


class Allreduce(Collective):
    name = "all_reduce"
    redop = "sum"

    def factor(self, size: int) -> float:
        return 2 * (size - 1) / size

    def views(self, first: Buffer, second: Buffer, in_place: bool, rank: int, size: int) -> Views:
        return first, first if in_place else second

    def launch(self, comm: Communicator, send: Buffer, receive: Buffer) -> Work:
        return comm.allreduce(send, receive)

    def fill(self, job: Job, send: Buffer) -> None:
        job.pattern.fill(send, addend(job.comm.rank, STEP))

    def wrong(self, job: Job, receive: Buffer) -> int:
        return job.pattern.wrong(receive, job.comm.size, total(job.comm.size, STEP))
