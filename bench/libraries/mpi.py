"""The MPI library's own Allreduce."""

from __future__ import annotations

from bench.job import Job
from bench.libraries.base import Absent, Library, Wait, nothing
from ncclkv.comm.types import Buffer


class MpiLibrary(Library):
    """Blocking calls through mpi4py."""

    name = "MPI"

    def __init__(self, job: Job) -> None:
        try:
            from mpi4py import MPI
        except (ImportError, RuntimeError) as error:
            raise Absent(f"mpi4py cannot be imported: {error}") from error
        if MPI.COMM_WORLD.size != job.comm.size:
            raise Absent(f"MPI has {MPI.COMM_WORLD.size} ranks, and the bench {job.comm.size}")
        self._in_place = MPI.IN_PLACE
        self._comm = MPI.COMM_WORLD.Dup()
        self.version = " ".join(MPI.Get_library_version().strip("\0").split("\n")[0].split())

    def start(self, send: Buffer, receive: Buffer) -> Wait:
        self._comm.Allreduce(self._in_place if send is receive else send, receive)
        return nothing

    def close(self) -> None:
        self._comm.Free()
