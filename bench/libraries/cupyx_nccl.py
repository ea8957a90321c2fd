"""CuPy's own layer over NCCL, cupyx.distributed."""

from __future__ import annotations

from typing import Any

from bench.job import Job
from bench.libraries.base import Absent, Library, Wait, nothing
from ncclkv.comm.types import Buffer


class CupyxLibrary(Library):
    """all_reduce on CuPy's current stream."""

    name = "cupyx"

    def __init__(self, job: Job) -> None:
        try:
            import cupy
            from cupyx import distributed
        except ImportError as error:
            raise Absent(f"CuPy cannot be imported: {error}") from error
        self.version = f"CuPy {cupy.__version__}"
        # The library starts by MPI, with which rank 0 sends NCCL's id to the others.
        try:
            self._comm: Any = distributed.NCCLBackend(job.comm.size, job.comm.rank, use_mpi=True)
        except (ImportError, RuntimeError) as error:
            raise Absent(f"cupyx cannot start by MPI: {error}") from error

    def start(self, send: Buffer, receive: Buffer) -> Wait:
        self._comm.all_reduce(send, receive)
        return nothing

    def close(self) -> None:
        self._comm.stop()
