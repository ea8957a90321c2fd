"""Plain NCCL: one call of the library on CuPy's current stream."""

from __future__ import annotations

from typing import Any

from bench.job import Job
from bench.libraries.base import Absent, Library, Wait, nothing
from ncclkv.comm.types import Buffer


class RawNcclLibrary(Library):
    """ncclAllReduce through ``cupy.cuda.nccl``."""

    name = "NCCL"

    def __init__(self, job: Job) -> None:
        try:
            import cupy
            from cupy.cuda import nccl
        except ImportError as error:
            raise Absent(f"CuPy's NCCL cannot be imported: {error}") from error
        self.version = str(nccl.get_version())
        self._stream = cupy.cuda.get_current_stream
        self._float, self._sum = nccl.NCCL_FLOAT32, nccl.NCCL_SUM
        mine = nccl.get_unique_id() if job.comm.rank == 0 else None
        shared = job.comm.control.broadcast(mine, 0, "NCCL's id")
        self._comm: Any = nccl.NcclCommunicator(job.comm.size, shared, job.comm.rank)

    def start(self, send: Buffer, receive: Buffer) -> Wait:
        addresses = send.data.ptr, receive.data.ptr  # type: ignore[attr-defined]
        self._comm.allReduce(*addresses, send.size, self._float, self._sum, self._stream().ptr)
        return nothing

    def close(self) -> None:
        self._comm.destroy()
