"""Every rank gets one part of the sum of all."""

from __future__ import annotations

from bench.data import addend, total
from bench.job import Job
from bench.raw.collective import STEP, Parts, Views
from ncclkv.comm.base import Communicator
from ncclkv.comm.types import Buffer, Work


class ReduceScatter(Parts):
    name = "reduce_scatter"
    redop = "sum"

    def views(self, first: Buffer, second: Buffer, in_place: bool, rank: int, size: int) -> Views:
        part = first.size // size
        whole = first if in_place else second
        return first, whole[rank * part : (rank + 1) * part]

    def launch(self, comm: Communicator, send: Buffer, receive: Buffer) -> Work:
        return comm.reduce_scatter(send, receive)

    def fill(self, job: Job, send: Buffer) -> None:
        job.pattern.fill(send, addend(job.comm.rank, STEP))

    def wrong(self, job: Job, receive: Buffer) -> int:
        size, start = job.comm.size, job.comm.rank * receive.size
        return job.pattern.wrong(receive, size, total(size, STEP), start)
