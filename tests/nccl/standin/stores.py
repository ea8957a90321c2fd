"""Stores on a GPU, over the stand-in."""

from __future__ import annotations

from typing import Any

from ncclkv import env
from ncclkv.arguments import check_length
from ncclkv.comm.nccl.communicator import NcclCommunicator
from ncclkv.store.kvstore import KVStore
from ncclkv.store.options import Options
from ncclkv.table.cost import DEFAULT_BUCKET_BYTES
from tests.conformance.stores import Stores
from tests.nccl.standin.worker import Worker


class StandInStores(Stores):
    """A function that opens stores named ``nccl`` on a worker."""

    def __init__(self, worker: Worker, update_on: str) -> None:
        super().__init__("nccl", update_on)
        self._worker = worker

    def open(
        self,
        *,
        update_on: str,
        root: int = 0,
        bucket_bytes: int | str = DEFAULT_BUCKET_BYTES,
        timeout: float | None = None,
        **options: Any,
    ) -> Any:
        worker = self._worker
        check_length("timeout", timeout)
        limit = None if timeout is None else env.timeout(timeout)
        peers, streams = worker.peers.duplicate(limit), worker.streams.another()
        return KVStore(
            self.name,
            NcclCommunicator(
                peers, worker.binding, streams, worker.kernels, watcher=worker.watcher
            ),
            Options(update_on=update_on, root=root, bucket_bytes=bucket_bytes, **options),
        )
