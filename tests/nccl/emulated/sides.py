"""Memory of each kind, for tests of the emulated runtime's copies."""

from __future__ import annotations

import ctypes

from tests.nccl.emulated.calls import made, ok

HOST_TO_HOST, TO_DEVICE, TO_HOST, WITHIN_DEVICE, DEFAULT = range(5)
SIZE = 1000
SOON = 0.15
"""Seconds in which a call that does not wait would most likely return."""


class Memory:
    """Memory of each kind, 1000 bytes, each kind with another first byte."""

    def __init__(self) -> None:
        self._kept = [ctypes.create_string_buffer(SIZE) for _ in range(2)]
        self.pageable, self.other_pageable = map(ctypes.addressof, self._kept)
        self.pinned, self.other_pinned = (made("cudaMallocHost", SIZE) for _ in range(2))
        self.device, self.other_device = (made("cudaMalloc", SIZE) for _ in range(2))
        self.managed = made("cudaMallocManaged", SIZE, 1)

    def free(self) -> None:
        for pinned in (self.pinned, self.other_pinned):
            ok("cudaFreeHost", pinned)
        for memory in (self.device, self.other_device, self.managed):
            ok("cudaFree", memory)

    def __getitem__(self, name: str) -> int:
        return int(getattr(self, name))

    def is_of_device(self, name: str) -> bool:
        return name.endswith("device")

    def set(self, name: str, byte: int) -> None:
        if self.is_of_device(name):
            ok("cudaMemset", self[name], byte, SIZE)
            ok("cudaDeviceSynchronize")
        else:
            ctypes.memset(self[name], byte, SIZE)

    def get(self, name: str) -> bytes:
        if not self.is_of_device(name):
            return ctypes.string_at(self[name], SIZE)
        taken = ctypes.create_string_buffer(SIZE)
        ok("cudaMemcpy", taken, self[name], SIZE, TO_HOST)
        return taken.raw
