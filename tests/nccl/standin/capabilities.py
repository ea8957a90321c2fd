"""Buffers of the communicator cases when the stand-in carries out the calls."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.conformance.capabilities import Place
from tests.nccl.place import GpuPlace
from tests.nccl.standin.drive import breaks
from tests.nccl.standin.rank import Seat

# The stand-in sums as hosts do, so no rounding hides a wrong count or address; it is as fast as
# hosts.
STAND_IN = replace(
    GpuPlace.promises,
    rank_order=True,
    nan_wins=True,
    deadline=Place.promises.deadline,
    slack=Place.promises.slack,
    mismatch_seconds=Place.promises.mismatch_seconds,
)


class DevicePlace(Place):
    """The memory of a worker's device."""

    promises = STAND_IN

    def __init__(self, seat: Seat) -> None:
        self._seat = seat

    def put(self, values: NDArray[Any]) -> Any:
        return self._seat.streams.put(np.asarray(values))

    def get(self, buffer: Any) -> NDArray[Any]:
        return buffer if isinstance(buffer, np.ndarray) else self._seat.streams.get(buffer)

    def write(self, buffer: Any, values: Any) -> None:
        self._seat.streams.write(buffer, np.broadcast_to(values, buffer.shape))

    def copy(self, buffer: Any, into: Any) -> None:
        self._seat.kernels.pack(buffer, into)

    def address(self, buffer: Any) -> int:
        place: int = buffer.data.ptr
        return place

    def mismatch(self, *words: str) -> AbstractContextManager[Any]:
        """Expect an error on every rank; NCCL would hang or mix up numbers."""
        return breaks(self._seat, "made different calls")
