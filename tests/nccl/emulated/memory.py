"""Memory for tests of the emulated runtime: what is in it, and whose it is."""

from __future__ import annotations

import ctypes

from tests.nccl.emulated.calls import ok

POISON = 0xA5
DEFAULT = 4
"""The kind of copies that looks at the pointers."""

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
    """Return what is in memory of a device."""
    taken = ctypes.create_string_buffer(size)
    ok("cudaMemcpy", taken, pointer, ctypes.c_size_t(size), DEFAULT)
    return taken.raw
