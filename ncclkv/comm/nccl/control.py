"""The way of host objects beside NCCL."""

from __future__ import annotations

from typing import Any

from ncclkv.comm.control import ObjectComm
from ncclkv.comm.nccl.progress import NcclProgress


class NcclObjectComm(ObjectComm):
    """Host objects between the hosts; their failure is one of the whole communicator."""

    def __init__(self, flight: NcclProgress, control: ObjectComm) -> None:
        self._flight = flight
        self._control = control

    def allgather(self, item: Any, label: str = "") -> list[Any]:
        with self._flight.guard:
            return self._control.allgather(item, label)

    def broadcast(self, item: Any, root: int = 0, label: str = "") -> Any:
        with self._flight.guard:
            return self._control.broadcast(item, root, label)

    def barrier(self, label: str = "") -> None:
        with self._flight.guard:
            self._control.barrier(label)
