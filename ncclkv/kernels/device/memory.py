"""New arrays in the device's memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from ncclkv.arrays.memory import is_on_host
from ncclkv.kernels.device.copies import DeviceArray


def zeros(count: int, dtype: np.dtype[Any]) -> DeviceArray:
    """A new flat array of zeros."""
    import cupy

    return cupy.zeros(count, dtype)


def empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> DeviceArray:
    """A new array whose elements may be anything."""
    import cupy

    return cupy.empty(shape, dtype)


def copy(array: DeviceArray) -> DeviceArray:
    """A contiguous copy that shares no memory; of an array in host memory, in host memory."""
    import cupy

    library = np if is_on_host(array) else cupy
    return library.array(array, order="C", copy=True)
