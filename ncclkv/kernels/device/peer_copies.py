"""Copies between the devices of one process.

Whatever is done on a device is done in that device's current stream: there a value was made, and
there it is used next.  So a copy from one device to another waits for all that is in the current
streams of both, and both wait for it; the host does not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ncclkv.kernels.device.copies import DeviceArray
from ncclkv.kernels.device.memory import assign

Transfer = Callable[[DeviceArray, DeviceArray], None]
"""Copy all bytes of an array to one of the same size on another device, both in C order."""


def apart(one: DeviceArray, other: DeviceArray) -> bool:
    """Return whether two arrays are on different devices."""
    return bool(one.device.id != other.device.id)


def copy_across(source: DeviceArray, destination: DeviceArray, transfer: Transfer) -> None:
    """Copy between arrays of one shape on different devices, casting as ``astype`` does.

    What is not in C order is brought into it on its own device, and what has another dtype is cast
    on its destination's: only bytes go from one to the other, and each of them once.
    """
    import cupy

    with _on(source):
        whole = cupy.ascontiguousarray(source)
    if destination.flags.c_contiguous and destination.dtype == source.dtype:
        transfer(whole, destination)
        return
    with _on(destination):
        landing = cupy.empty(source.shape, source.dtype)
    transfer(whole, landing)
    with _on(destination):
        assign(landing, destination)


def transfer(source: DeviceArray, destination: DeviceArray) -> None:
    """Copy bytes on the current stream of the destination's device, in the order of both.

    Where the devices cannot reach each other's memory, CUDA goes by way of the host.
    """
    import cupy

    if not source.nbytes:
        return
    cuda = cupy.cuda
    with _on(source):
        made = cuda.Event(disable_timing=True)
        made.record(cuda.get_current_stream())
    with _on(destination):
        stream = cuda.get_current_stream()
        stream.wait_event(made)
        cuda.runtime.memcpyPeerAsync(
            destination.data.ptr,
            destination.device.id,
            source.data.ptr,
            source.device.id,
            source.nbytes,
            stream.ptr,
        )
        copied = cuda.Event(disable_timing=True)
        copied.record(stream)
    with _on(source):
        cuda.get_current_stream().wait_event(copied)


def _on(array: DeviceArray) -> Any:
    """Make an array's device the current one within a ``with`` block."""
    import cupy

    return cupy.cuda.Device(array.device.id)
