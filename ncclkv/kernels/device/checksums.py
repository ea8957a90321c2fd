"""Checksums of many arrays, in any memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ncclkv.kernels.device.copies import DeviceArray
from ncclkv.kernels.device.kernel_args import PIECES, SUMMED_BYTES, SUMS, batches, first_blocks, new
from ncclkv.kernels.device.launch import Launch
from ncclkv.kernels.device.memory import zeros
from ncclkv.kernels.device.peer_copies import Transfer, apart, copy_across
from ncclkv.kernels.device.sources import CHECKSUM
from ncclkv.kernels.host.checksum import checksums as of_host

Upload = Callable[[DeviceArray, DeviceArray], None]
"""Copy an array of the host to the device, in the order of the current stream."""


def checksums(
    arrays: Sequence[DeviceArray], launch: Launch, upload: Upload, transfer: Transfer
) -> DeviceArray:
    """Return the sum of each array, shape (len(arrays),), uint64, with a launch for 128 of them.

    The host sums what is in its memory, and waits for nothing.  What is on another device, or not
    in C order, is copied.
    """
    sums = zeros(len(arrays), np.dtype(np.uint64))
    parts = [_part(array, sums, transfer) for array in arrays]
    for number, array in enumerate(arrays):
        if isinstance(array, np.ndarray):
            upload(of_host([array]), sums[number : number + 1])
    for batch in batches(len(parts), PIECES):
        count = batch.stop - batch.start
        sizes = np.array([part.nbytes for part in parts[batch]], np.int64)
        first = first_blocks(sizes, SUMMED_BYTES)
        argument = new(SUMS)
        argument["source"][:count] = [part.data.ptr for part in parts[batch]]
        argument["nbytes"][:count] = sizes
        argument["out"] = sums[batch].data.ptr
        argument["first"][: count + 1] = first
        argument["count"] = count
        launch(CHECKSUM, int(first[-1]), argument)
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
