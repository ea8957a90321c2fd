"""Every rank gets the parts of all, in rank order."""

from __future__ import annotations

from bench.data import addend
from bench.job import Job
from bench.raw.collective import STEP, Parts, Views
from ncclkv.comm.base import Communicator
from ncclkv.comm.types import Buffer, Work


class Allgather(Parts):
    name = "all_gather"

    def views(self, first: Buffer, second: Buffer, in_place: bool, rank: int, size: int) -> Views:
        part = first.size // size
        whole = second if in_place else first
        return whole[rank * part : (rank + 1) * part], second

    def launch(self, comm: Communicator, send: Buffer, receive: Buffer) -> Work:
        return comm.allgather(send, receive)

    def fill(self, job: Job, send: Buffer) -> None:
        job.pattern.fill(send, addend(job.comm.rank, STEP))

    def wrong(self, job: Job, receive: Buffer) -> int:
        part = receive.size // job.comm.size
        return sum(
            job.pattern.wrong(receive[rank * part : (rank + 1) * part], 1, addend(rank, STEP))
            for rank in range(job.comm.size)
        )
