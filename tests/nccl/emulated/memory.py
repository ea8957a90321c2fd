"""Memory for tests of the emulated runtime: its content and its owner."""

from __future__ import annotations

import ctypes

from tests.nccl.emulated.calls import ok

POISON = 0xA5
DEFAULT = 4
"""Kind of copies that inspects the pointers."""

UNREGISTERED, HOST, DEVICE, MANAGED = range(4)
"""Types of memory."""


class Attributes(ctypes.Structure):
    """The struct cudaPointerAttributes of driver_types.h."""

    _fields_ = [
        ("type", ctypes.c_int),
        ("device", ctypes.c_int),
        ("on_device", ctypes.c_void_p),
        ("on_host", ctypes.c_void_p),
        ("reserved", ctypes.c_long * 8),
    ]


def attributes(pointer: int) -> tuple[int, int, int | None, int | None]:
    """Return type, device and both addresses of memory."""
    got = Attributes()
    ok("cudaPointerGetAttributes", ctypes.byref(got), pointer)
    return got.type, got.device, got.on_device, got.on_host


def contents(pointer: int, size: int) -> bytes:
    """Return the content of a device's memory."""
    taken = ctypes.create_string_buffer(size)
    ok("cudaMemcpy", taken, pointer, ctypes.c_size_t(size), DEFAULT)
    return taken.raw
