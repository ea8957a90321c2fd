"""Buffers of the communicator cases on a real GPU, and NCCL's limits there."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ncclkv.errors import CommTimeout
from tests.conformance.capabilities import Capabilities, HostBuffers


def refused(dtype: np.dtype[Any], op: str) -> str:
    """Return whether NCCL has no reduction for a dtype and an op."""
    if dtype.kind in "iu" and dtype.itemsize == 2:
        return "NCCL reduces no 16-bit integers; use .astype"
    if dtype.kind == "c" and op == "prod":
        return "NCCL multiplies real numbers only; use sum or avg"
    return ""


class GpuBuffers(HostBuffers):
    """The memory of the current device, through CuPy."""

    capabilities = Capabilities(
        rank_order=False,
        nan_wins=False,
        missing="the other ranks (",
        sent_counts=False,
        sender_goes_on=False,
        compares_empty=False,
        compares_names=False,
        free_order=False,
        read_only=False,
        timed=False,
        deadline=0.5,
        # NCCL's abort takes half a second.
        slack=3.0,
        # The deadline may pass: NCCL does not report lengths that differ.
        mismatch_seconds=2.0,
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
        """Expect an end after differing calls: NCCL waits for the deadline, or mixes up numbers."""
        return _ends(self.capabilities.mismatch_seconds + self.capabilities.slack)


@contextmanager
def _ends(seconds: float) -> Iterator[None]:
    """Expect an end in time, by the deadline or without an error."""
    begin = time.monotonic()
    with suppress(CommTimeout):
        yield
    assert time.monotonic() - begin < seconds
