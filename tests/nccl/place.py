"""Where the cases put their buffers on a real GPU, and what NCCL does not promise there."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ncclkv.errors import CommTimeout
from tests.cases.place import Place, Promises


def refused(dtype: np.dtype[Any], op: str) -> str:
    """What NCCL has no reduction for."""
    if dtype.kind in "iu" and dtype.itemsize == 2:
        return "NCCL reduces no 16-bit integers; use .astype"
    if dtype.kind == "c" and op == "prod":
        return "NCCL multiplies real numbers only; use sum or avg"
    return ""


class GpuPlace(Place):
    """The memory of the current device, through CuPy."""

    promises = Promises(
        rank_order=False,
        nan_wins=False,
        missing="the other ranks (",
        sent_counts=False,
        sender_goes_on=False,
        compares_empty=False,
        free_order=False,
        read_only=False,
        timed=False,
        refused=refused,
    )

    def put(self, values: NDArray[Any]) -> Any:
        import cupy

        return cupy.asarray(values)

    def get(self, buffer: Any) -> NDArray[Any]:
        array: NDArray[Any] = buffer if isinstance(buffer, np.ndarray) else buffer.get()
        return array

    def write(self, buffer: Any, values: Any) -> None:
        import cupy

        buffer[...] = cupy.asarray(values)

    def copy(self, buffer: Any, into: Any) -> None:
        import cupy

        cupy.copyto(into, buffer)

    def address(self, buffer: Any) -> int:
        place: int = buffer.data.ptr
        return place

    def mismatch(self, *words: str) -> AbstractContextManager[Any]:
        """NCCL hangs, and the deadline ends that."""
        return pytest.raises(CommTimeout)
