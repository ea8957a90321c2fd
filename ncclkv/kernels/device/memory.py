"""New arrays in the device's memory, and copies from one array to another."""

from __future__ import annotations

from typing import Any

import numpy as np

from ncclkv.arrays.cupy import memory
from ncclkv.arrays.memory import is_on_host
from ncclkv.kernels.device.copies import DeviceArray


def zeros(count: int, dtype: np.dtype[Any]) -> DeviceArray:
    """A new flat array of zeros."""
    import cupy

    with memory(f"{count * dtype.itemsize:,} bytes"):
        return cupy.zeros(count, dtype)


def empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> DeviceArray:
    """A new array whose elements may be anything."""
    import cupy

    with memory(f"an array of {dtype} {shape}"):
        return cupy.empty(shape, dtype)


def fill(array: DeviceArray, value: float) -> None:
    """Make every element of `array` that number, which is an argument of a kernel."""
    array.fill(value)


def copy(array: DeviceArray) -> DeviceArray:
    """A contiguous copy that shares no memory, in host memory or on the device of `array`."""
    import cupy

    if is_on_host(array):
        return np.array(array, order="C", copy=True)
    with cupy.cuda.Device(array.device.id):
        return cupy.array(array, order="C", copy=True)


def assign(source: DeviceArray, destination: DeviceArray) -> None:
    """Copy between arrays of one device and shape, of any strides, casting as ``astype`` does."""
    import cupy

    if source.dtype.kind == "c" and destination.dtype.kind != "c":
        # Only astype knows how: an element at a time has no such cast.
        source = source.astype(destination.dtype)
    cupy.copyto(destination, source, casting="unsafe")
