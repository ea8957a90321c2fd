"""Buffers of the communicator cases when the stand-in carries out the calls."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.conformance.capabilities import HostBuffers
from tests.nccl.gpu_buffers import GpuBuffers
from tests.nccl.standin.direct_calls import breaks
from tests.nccl.standin.worker import Worker

# The stand-in sums as hosts do, so no rounding hides a wrong count or address; it is as fast as
# hosts.  The deadline is longer: the creation of a communicator has to end within it, too.
STAND_IN = replace(
    GpuBuffers.capabilities,
    rank_order=True,
    rounded_averages=True,
    nan_wins=True,
    deadline=3 * HostBuffers.capabilities.deadline,
    slack=HostBuffers.capabilities.slack,
    mismatch_seconds=HostBuffers.capabilities.mismatch_seconds,
)


class StandInBuffers(HostBuffers):
    """The memory of a worker's device."""

    capabilities = STAND_IN

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def put(self, values: NDArray[Any]) -> Any:
        return self._worker.streams.put(self.get(values))

    def get(self, buffer: Any) -> NDArray[Any]:
        return buffer if isinstance(buffer, np.ndarray) else self._worker.streams.get(buffer)

    def write(self, buffer: Any, values: Any) -> None:
        self._worker.streams.write(buffer, np.broadcast_to(values, buffer.shape))

    def copy(self, buffer: Any, into: Any) -> None:
        self._worker.kernels.pack(buffer, into)

    def address(self, buffer: Any) -> int:
        place: int = buffer.data.ptr
        return place

    def mismatch(self, *words: str) -> AbstractContextManager[Any]:
        """Expect an error on every rank; NCCL would hang or mix up numbers."""
        return breaks(self._worker, "made different calls")
