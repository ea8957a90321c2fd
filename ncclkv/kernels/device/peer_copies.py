"""Peer copies: copies between the devices of one process.

A value is made, and used next, in the current stream of its device.  So a copy between two devices
waits for the current streams of both devices, and both streams wait for the copy.  The host does
not wait.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ncclkv.kernels.device.copies import DeviceArray
from ncclkv.kernels.device.memory import assign

Transfer = Callable[[DeviceArray, DeviceArray], None]
"""Function that copies the bytes of an array to another device; both arrays are in C order."""


def apart(one: DeviceArray, other: DeviceArray) -> bool:
    """Return whether two arrays are on different devices."""
    return bool(one.device.id != other.device.id)


def copy_across(source: DeviceArray, destination: DeviceArray, transfer: Transfer) -> None:
    """Copy between arrays of one shape on different devices, casting as ``astype`` does.

    An array is brought into C order on its own device, and cast on the destination's device: each
    byte goes from device to device once.
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

    CUDA copies through the host if the devices cannot access each other's memory.
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
    """Make the device of an array current within a ``with`` block."""
    import cupy

    return cupy.cuda.Device(array.device.id)
