"""Layer 3b: copies between devices."""

from __future__ import annotations

import ctypes
import time

from tests.nccl.emulated.calls import Error, Log, alone, code, made, ok, put
from tests.nccl.emulated.sides import SIZE, SOON, WITHIN_DEVICE, Memory


def copies_between_devices() -> None:
    ok("cudaSetDevice", 1)
    there = made("cudaMalloc", SIZE)
    stream = made("cudaStreamCreateWithFlags", 1)
    ok("cudaMemset", there, 9, SIZE)
    ok("cudaDeviceSynchronize")
    ok("cudaSetDevice", 0)
    memory = Memory()
    memory.set("device", 1)
    ok("cudaMemcpyPeerAsync", memory.device, 0, there, 1, ctypes.c_size_t(SIZE), stream)
    ok("cudaStreamSynchronize", stream)
    assert memory.get("device") == b"\t" * SIZE
    memory.set("device", 1)
    ok("cudaMemcpyPeer", memory.device, 0, there, 1, ctypes.c_size_t(SIZE))
    assert memory.get("device") == b"\t" * SIZE
    for to, source in ((1, 1), (0, 0)):
        got = code("cudaMemcpyPeer", memory.device, to, there, source, ctypes.c_size_t(8))
        assert got == Error.INVALID_VALUE
    got = code("cudaMemcpyPeer", memory.device, 0, there, 2, ctypes.c_size_t(8))
    assert got == Error.INVALID_DEVICE
    # A copy needs no stream of either device.
    ok("cudaMemcpyAsync", there, memory.device, 8, WITHIN_DEVICE, stream)
    ok("cudaStreamSynchronize", stream)


def test_copies_go_between_devices() -> None:
    alone(copies_between_devices, EMULATED_DEVICES="2")


def copies_while_the_other_device_works() -> None:
    there = made("cudaMalloc", SIZE)
    ok("cudaSetDevice", 1)
    here, stream = made("cudaMalloc", SIZE), made("cudaStreamCreateWithFlags", 1)
    log = Log()
    ok("cudaSetDevice", 0)
    assert put(stream, lambda: time.sleep(SOON)) == 0
    log.put(stream, "work")
    ok("cudaMemcpyPeer", there, 0, here, 1, ctypes.c_size_t(SIZE))
    assert log == ["work"]


def test_a_copy_between_devices_waits_for_all_work_of_both() -> None:
    alone(copies_while_the_other_device_works, EMULATED_DEVICES="2")
