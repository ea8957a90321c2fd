"""Checksums of many arrays, in any memory."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ncclkv.kernels.device.copies import Arrays, DeviceArray
from ncclkv.kernels.device.kernel_args import SUMMED_BYTES, SUMS, plan_launches
from ncclkv.kernels.device.launch import Launch
from ncclkv.kernels.device.memory import zeros
from ncclkv.kernels.device.peer_copies import Transfer, apart, copy_across
from ncclkv.kernels.device.sources import CHECKSUM
from ncclkv.kernels.host.checksum import checksums as of_host

Upload = Callable[[DeviceArray, DeviceArray], None]
"""Function that copies an array of the host to the device, in the current stream."""


def checksums(arrays: Arrays, launch: Launch, upload: Upload, transfer: Transfer) -> DeviceArray:
    """Return the checksum of each array, with one launch for 128 arrays.

    The host sums arrays in its own memory, and waits for nothing.  Arrays on another device, or not
    in C order, are copied.

    Returns
    -------
    ndarray of uint64, shape (len(arrays),)
    """
    sums = zeros(len(arrays), np.dtype(np.uint64))
    parts = [_part(array, sums, transfer) for array in arrays]
    for index, array in enumerate(arrays):
        if isinstance(array, np.ndarray):
            upload(of_host([array]), sums[index : index + 1])
    sizes = np.array([part.nbytes for part in parts], np.int64)
    for blocks, argument, pieces in plan_launches(SUMS, sizes, SUMMED_BYTES):
        count = argument["count"]
        argument["source"][:count] = [part.data.ptr for part in parts[pieces]]
        argument["nbytes"][:count] = sizes[pieces]
        argument["out"] = sums[pieces].data.ptr
        launch(CHECKSUM, blocks, argument)
    return sums


def _part(array: DeviceArray, sums: DeviceArray, transfer: Transfer) -> DeviceArray:
    """Return an array in C order on the device of `sums`; an empty one for host memory."""
    import cupy

    if isinstance(array, np.ndarray):
        return sums[:0]
    if not apart(array, sums):
        return cupy.ascontiguousarray(array)
    part = cupy.empty(array.shape, array.dtype)
    copy_across(array, part, transfer)
    return part
