"""Search for NaN and infinity on the device."""

from __future__ import annotations

from ncclkv.arrays.dtypes import dtype_name
from ncclkv.kernels.device.copies import DeviceArray
from ncclkv.kernels.device.kernel_args import SEARCH, new
from ncclkv.kernels.device.launch import THREADS, Launch
from ncclkv.kernels.device.sources import NONFINITE

MAX_BLOCKS = 4096
"""Maximum number of blocks of a search; each thread checks several numbers."""

_BYTES = 16
"""Number of bytes that a thread loads at once."""


def search(launch: Launch, array: DeviceArray, flag: DeviceArray) -> None:
    """Launch a kernel that sets ``flag[0]`` to 1 if a number of `array` is not finite."""
    if array.dtype.kind in "biu":
        return
    if array.dtype.kind == "c":
        array = array.view(array.real.dtype)
    argument = new(SEARCH)
    argument["words"] = array.data.ptr
    argument["flag"] = flag.data.ptr
    argument["size"] = array.size
    blocks = min(-(-array.nbytes // (_BYTES * THREADS)), MAX_BLOCKS)
    launch(NONFINITE[dtype_name(array.dtype)], blocks, argument)
