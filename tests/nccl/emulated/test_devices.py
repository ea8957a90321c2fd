"""Devices of the emulated runtime: their number, properties, contexts and peers."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable

import pytest

from tests.nccl.emulated import control
from tests.nccl.emulated.calls import Error, alone, code, ended, made, number, ok

NAME = "emulated device (no GPU)"
MANY = "4"


def on_a_new_thread(ask: Callable[[], object]) -> object:
    """Return a function's result on a new thread."""
    seen: list[object] = []
    thread = threading.Thread(target=lambda: seen.append(ask()))
    thread.start()
    thread.join()
    return seen[0]


# Number of devices


def says_how_many() -> None:
    print(number("cudaGetDeviceCount"), number("cuDeviceGetCount"))


@pytest.mark.parametrize("many", ["1", "2", "3", "4"])
def test_the_environment_says_how_many(many: str) -> None:
    assert alone(says_how_many, EMULATED_DEVICES=many).split() == [many, many]


@pytest.mark.parametrize("many", ["0", "5", "two"])
def test_no_other_number_is_taken(many: str) -> None:
    process = ended(says_how_many, EMULATED_DEVICES=many)
    assert process.returncode == 2
    assert f"EMULATED_DEVICES is '{many}', none of 1 to 4" in process.stderr


# Properties


def says_who_they_are() -> None:
    from cupy.cuda import runtime

    for device in range(runtime.getDeviceCount()):
        properties = runtime.getDeviceProperties(device)
        bus = runtime.deviceGetPCIBusId(device)
        assert runtime.deviceGetByPCIBusId(bus) == device
        assert runtime.deviceGetByPCIBusId(bus.removeprefix("0000:")) == device
        assert properties["pciBusID"] == int(bus.split(":")[1], 16)
        print(properties["name"].decode(), properties["uuid"].hex(), bus, sep=";")


def test_devices_are_the_same_in_every_process_and_differ_from_each_other() -> None:
    first, second = (alone(says_who_they_are, EMULATED_DEVICES=MANY) for _ in range(2))
    assert first == second
    devices = [line.split(";") for line in first.splitlines()]
    assert [name for name, _, _ in devices] == [NAME] * 4
    assert len({uuid for _, uuid, _ in devices}) == 4
    assert len({bus for _, _, bus in devices}) == 4
    fewer = alone(says_who_they_are, EMULATED_DEVICES="2")
    assert fewer.splitlines() == first.splitlines()[:2]


def test_the_compute_capability_is_9_0() -> None:
    import cupy

    assert cupy.cuda.Device(0).compute_capability == "90"


def test_properties_are_those_of_the_attributes() -> None:
    import cupy

    properties = cupy.cuda.runtime.getDeviceProperties(0)
    attributes = cupy.cuda.Device(0).attributes
    same = {
        "maxThreadsPerBlock": "MaxThreadsPerBlock",
        "warpSize": "WarpSize",
        "multiProcessorCount": "MultiProcessorCount",
        "maxThreadsPerMultiProcessor": "MaxThreadsPerMultiProcessor",
        "sharedMemPerBlock": "MaxSharedMemoryPerBlock",
        "sharedMemPerBlockOptin": "MaxSharedMemoryPerBlockOptin",
        "regsPerBlock": "MaxRegistersPerBlock",
        "pciBusID": "PciBusId",
        "cooperativeLaunch": "CooperativeLaunch",
        "managedMemory": "ManagedMemory",
    }
    for name, attribute in same.items():
        assert properties[name] == attributes[attribute], name
    limits = [attributes[f"MaxBlockDim{axis}"] for axis in "XYZ"]
    assert list(properties["maxThreadsDim"]) == limits == [1024, 1024, 64]
    assert attributes["CooperativeLaunch"] == 0


def test_there_are_no_other_attributes() -> None:
    value = ctypes.c_int()
    for attribute in (0, -1, 100000):
        got = code("cudaDeviceGetAttribute", ctypes.byref(value), ctypes.c_int(attribute), 0)
        assert got == Error.INVALID_VALUE
    assert code("cudaDeviceGetAttribute", ctypes.byref(value), 1, 7) == Error.INVALID_DEVICE


def test_versions_are_those_of_the_headers() -> None:
    import cupy

    versions = {number("cudaRuntimeGetVersion"), number("cudaDriverGetVersion")}
    assert versions == {number("cuDriverGetVersion")}
    assert versions == {cupy.cuda.runtime.runtimeGetVersion()}
    assert versions.pop() // 1000 == cupy.cuda.driver.get_build_version() // 1000


# The current device


def uses_two() -> None:
    ok("cudaSetDevice", 1)
    assert number("cudaGetDevice") == 1
    assert on_a_new_thread(lambda: number("cudaGetDevice")) == 0
    stream = made("cudaStreamCreate")
    ok("cudaSetDevice", 0)
    assert control.library().emulated_stream_device(ctypes.c_void_p(stream)) == 1
    for device in (-1, 2):
        assert code("cudaSetDevice", ctypes.c_int(device)) == Error.INVALID_DEVICE
    assert number("cudaGetDevice") == 0


def test_the_current_device_is_the_threads_own() -> None:
    alone(uses_two, EMULATED_DEVICES="2")


# Contexts


def current_context() -> int:
    return int(number("cuCtxGetCurrent", type=ctypes.c_void_p) or 0)


def has_no_context_at_first() -> None:
    device = ctypes.c_int()
    assert current_context() == 0
    assert code("cuCtxGetDevice", ctypes.byref(device)) == Error.INVALID_CONTEXT
    # These functions query devices alone.
    number("cudaGetDeviceCount")
    number("cudaGetDevice")
    number("cudaRuntimeGetVersion")
    assert current_context() == 0
    ok("cudaFree", None)
    context = current_context()
    assert context
    assert on_a_new_thread(current_context) == 0
    ok("cudaSetDevice", 1)
    other = current_context()
    assert other not in (0, context)
    assert number("cuCtxGetDevice") == 1
    ok("cuCtxSetCurrent", context)
    assert (number("cudaGetDevice"), number("cuCtxGetDevice")) == (0, 0)
    ok("cuCtxSetCurrent", None)
    assert current_context() == 0
    assert code("cuCtxSetCurrent", 4711) == Error.INVALID_CONTEXT


def test_a_thread_has_the_primary_context_of_its_device_once_it_uses_it() -> None:
    alone(has_no_context_at_first, EMULATED_DEVICES="2")


def test_primary_contexts_are_retained_and_released() -> None:
    ok("cudaFree", None)
    assert made("cuDevicePrimaryCtxRetain", 0) == current_context()
    ok("cuDevicePrimaryCtxRelease_v2", 0)
    assert code("cuDevicePrimaryCtxRelease_v2", 0) == Error.INVALID_CONTEXT
    assert code("cuDevicePrimaryCtxRelease_v2", 9) == Error.INVALID_DEVICE


def test_a_stream_has_the_context_of_its_device() -> None:
    stream = made("cudaStreamCreate")
    assert number("cuStreamGetCtx", stream, type=ctypes.c_void_p) == current_context()
    ok("cudaStreamDestroy", stream)


def test_other_contexts_are_refused_by_name() -> None:
    assert "emulated: cuCtxCreate_v2 is not emulated" in ended(asks_for_a_context).stderr


def asks_for_a_context() -> None:
    context = ctypes.c_void_p()
    assert code("cuCtxCreate_v2", ctypes.byref(context), 0, 0) == Error.NOT_SUPPORTED


# Peers and limits


def uses_peers() -> None:
    can = ctypes.c_int()
    for device, peer, expected in ((0, 1, 1), (1, 0, 1), (0, 0, 0)):
        ok("cudaDeviceCanAccessPeer", ctypes.byref(can), device, peer)
        assert can.value == expected
    assert code("cudaDeviceCanAccessPeer", ctypes.byref(can), 0, 2) == Error.INVALID_DEVICE
    assert code("cudaDeviceDisablePeerAccess", 1) == Error.PEER_NOT_ENABLED
    ok("cudaDeviceEnablePeerAccess", 1, 0)
    assert code("cudaDeviceEnablePeerAccess", 1, 0) == Error.PEER_ALREADY_ENABLED
    assert code("cudaDeviceEnablePeerAccess", 0, 0) == Error.INVALID_DEVICE
    assert code("cudaDeviceEnablePeerAccess", 1, 1) == Error.INVALID_VALUE
    ok("cudaSetDevice", 1)
    assert code("cudaDeviceDisablePeerAccess", 0) == Error.PEER_NOT_ENABLED
    ok("cudaSetDevice", 0)
    ok("cudaDeviceDisablePeerAccess", 1)


def test_peer_access_has_a_direction() -> None:
    alone(uses_peers, EMULATED_DEVICES="2")


def test_limits_are_kept() -> None:
    def limit(which: int) -> int:
        value = ctypes.c_size_t()
        ok("cudaDeviceGetLimit", ctypes.byref(value), which)
        return value.value

    before = limit(0)
    ok("cudaDeviceSetLimit", 0, 4096)
    assert limit(0) == 4096
    ok("cudaDeviceSetLimit", 0, before)
    value = ctypes.c_size_t()
    assert code("cudaDeviceGetLimit", ctypes.byref(value), 99) == Error.UNSUPPORTED_LIMIT
    assert code("cudaDeviceSetLimit", 99, 1) == Error.UNSUPPORTED_LIMIT
    code("cudaGetLastError")
