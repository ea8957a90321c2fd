"""New arrays in the device's memory, and copies from one array to another."""

from __future__ import annotations

from typing import Any

import numpy as np

from ncclkv.arrays.cupy import memory
from ncclkv.arrays.memory import is_on_host
from ncclkv.kernels.device.copies import DeviceArray


def zeros(count: int, dtype: np.dtype[Any]) -> DeviceArray:
    """Return a new flat array of zeros."""
    import cupy

    with memory(f"{count * dtype.itemsize:,} bytes"):
        return cupy.zeros(count, dtype)


def empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> DeviceArray:
    """Return a new array with undefined elements."""
    import cupy

    with memory(f"an array of {dtype} {shape}"):
        return cupy.empty(shape, dtype)


class Mirror:
    """A copy of an array in page-locked memory of the host, which the device writes.

    The host waits for no copy.  So it reads numbers that may be those of an earlier `update`.

    Parameters
    ----------
    array : cupy.ndarray
        Flat and contiguous.

    Attributes
    ----------
    host : ndarray
        Zeros at first.
    """

    def __init__(self, array: DeviceArray) -> None:
        import cupy

        self._array = array
        memory = cupy.cuda.alloc_pinned_memory(max(array.nbytes, 1))
        self.host = np.ndarray(array.shape, array.dtype, memory)
        self.host.fill(0)

    def update(self) -> None:
        """Copy the array to the host, in the current stream, which may be captured."""
        import cupy

        # CuPy's own call refuses every copy to the host in a capture, also one that does not wait.
        runtime, stream = cupy.cuda.runtime, cupy.cuda.get_current_stream().ptr
        source, target = self._array.data.ptr, self.host.ctypes.data
        if self._array.nbytes:
            runtime.memcpyAsync(
                target, source, self._array.nbytes, runtime.memcpyDeviceToHost, stream
            )


def copy(array: DeviceArray) -> DeviceArray:
    """Return a contiguous copy in the memory of `array`: of the host, or of its device."""
    import cupy

    if is_on_host(array):
        return np.array(array, order="C", copy=True)
    with cupy.cuda.Device(array.device.id):
        return cupy.array(array, order="C", copy=True)


def assign(source: DeviceArray, destination: DeviceArray) -> None:
    """Copy between arrays of one device and shape, of any strides, casting as ``astype`` does."""
    import cupy

    if source.dtype.kind == "c" and destination.dtype.kind != "c":
        # copyto has no cast from complex to real numbers.
        source = source.astype(destination.dtype)
    cupy.copyto(destination, source, casting="unsafe")
