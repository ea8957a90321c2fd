"""torch.distributed: Gloo on hosts, NCCL on GPUs."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from bench.job import Job
from bench.libraries.base import Absent, Library, Wait
from ncclkv.comm.types import Buffer


class TorchLibrary(Library):
    """Asynchronous all_reduce of tensors that share the arrays' memory.

    torch sums in place: where send and receive differ, the tensor is copied first.
    """

    def __init__(self, job: Job) -> None:
        try:
            import torch
            from torch import distributed
        except ImportError as error:
            raise Absent(f"torch cannot be imported ({error}): make bench TORCH=1") from error
        self.torch: Any = torch
        self._distributed: Any = distributed
        self._device = "cuda" if job.options.gpu else "cpu"
        backend = "nccl" if job.options.gpu else "gloo"
        self.name = "torch NCCL" if job.options.gpu else "Gloo"
        self.version = f"torch {torch.__version__}"
        if not distributed.is_available() or not distributed.is_backend_available(backend):
            raise Absent(f"this build of torch has no {backend}")
        if job.options.gpu:
            torch.cuda.set_device(job.memory.xp.cuda.runtime.getDevice())
        self._tensors: dict[int, tuple[Buffer, Any]] = {}
        self._start(job, backend)

    def _start(self, job: Job, backend: str) -> None:
        """Start the process group at a port that rank 0 picks; collective."""
        comm, timeout = job.comm, timedelta(seconds=job.comm.timeout)
        one_node = comm.local_size == comm.size
        if one_node:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        store_class, server = self._distributed.TCPStore, None
        host = "127.0.0.1" if one_node else socket.gethostname()
        if comm.rank == 0:
            server = store_class(host, 0, is_master=True, timeout=timeout, wait_for_workers=False)
        address = (host, server.port) if server is not None else None
        host, port = comm.control.broadcast(address, 0, "torch's port")
        store = server or store_class(host, port, is_master=False, timeout=timeout)
        self._distributed.init_process_group(
            backend, store=store, rank=comm.rank, world_size=comm.size, timeout=timeout
        )

    def tensor(self, array: Buffer) -> Any:
        """Return a tensor of the same memory, made once for each array."""
        if id(array) not in self._tensors:
            made = self.torch.as_tensor(array, device=self._device)
            self._tensors[id(array)] = (array, made)
        return self._tensors[id(array)][1]

    def forget(self) -> None:
        self._tensors.clear()

    def start(self, send: Buffer, receive: Buffer) -> Wait:
        tensor = self.tensor(receive)
        if send is not receive:
            tensor.copy_(self.tensor(send))
        wait: Wait = self._distributed.all_reduce(tensor, async_op=True).wait
        return wait

    def copy(self, into: Sequence[Buffer], arrays: Sequence[Buffer]) -> None:
        targets, sources = [self.tensor(each) for each in into], [self.tensor(a) for a in arrays]
        self.torch._foreach_copy_(targets, sources)

    def close(self) -> None:
        self.forget()
        self._distributed.destroy_process_group()
