"""Copies between host memory and the device."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ncclkv.arrays.cupy import event_is_complete
from ncclkv.kernels.device.copies import DeviceArray


class Staging:
    """Uploads through page-locked memory.

    CuPy's pool reuses freed memory at once, even if a copy still reads it.  So each piece is kept
    until an event after its copy is complete.
    """

    def __init__(self) -> None:
        self._busy: list[tuple[Any, Any]] = []

    def upload(self, value: NDArray[Any], slot: DeviceArray) -> None:
        """Copy `value` (any shape, strides and byte order) into the flat `slot` of its size.

        After the call `value` may be changed; the copy to the device is in the current stream.
        """
        import cupy

        if not value.size:
            return
        runtime = cupy.cuda.runtime
        self._busy = [each for each in self._busy if not event_is_complete(each[0].ptr, runtime)]
        memory = cupy.cuda.alloc_pinned_memory(slot.nbytes)
        staged = np.ndarray(value.shape, slot.dtype, memory)
        np.copyto(staged, value)
        slot.data.copy_from_host_async(staged.ctypes.data, slot.nbytes)
        event = cupy.cuda.Event(disable_timing=True)
        event.record()
        self._busy.append((event, memory))


def download(slot: DeviceArray, out: NDArray[Any]) -> None:
    """Copy `slot` (any shape) into `out`, of the same size, casting to its dtype.

    `out` may have any shape, strides and byte order.  `out` is written when the call returns.  The
    call waits for the current stream without a deadline, so wait before for any collective that the
    stream waits for.
    """
    if not out.size:
        return
    if out.dtype == slot.dtype and out.flags.c_contiguous:
        # CuPy compares the shapes, and the value of a key without a bucket has the key's own.
        slot.reshape(-1).get(out=out.reshape(-1))
    else:
        np.copyto(out, slot.get().reshape(out.shape), casting="unsafe")
