"""Layer 3b: lost and stopped devices."""

from __future__ import annotations

import ctypes
import time
from typing import Any

from tests.nccl.emulated import control
from tests.nccl.emulated.calls import Error, Log, Things, alone, code, last, made, number, ok, text

SOON = 0.3
"""Seconds in which a call that does not hang would return."""


# Lost devices


def loses_its_device() -> None:
    stream = made("cudaStreamCreate")
    event = made("cudaEventCreate")
    ok("cudaEventRecord", event, stream)
    ok("cudaStreamSynchronize", stream)
    control.fail("cudaMemGetInfo", 1, Error.ILLEGAL_ADDRESS, sticky=True)
    one, two = ctypes.c_size_t(), ctypes.c_size_t()
    where = ctypes.byref(one)
    calls: dict[str, tuple[Any, ...]] = {
        "cudaMemGetInfo": (where, ctypes.byref(two)),
        "cudaEventQuery": (event,),
        "cudaStreamQuery": (stream,),
        "cudaStreamSynchronize": (stream,),
        "cudaDeviceSynchronize": (),
        "cudaGetDevice": (where,),
        "cudaSetDevice": (0,),
        "cudaMalloc": (where, 64),
        "cudaFree": (None,),
        "cudaEventDestroy": (event,),
        "cuCtxGetDevice": (where,),
    }
    for _ in range(2):
        for name, arguments in calls.items():
            got = code(name, *arguments)
            assert got == Error.ILLEGAL_ADDRESS, (name, got)
    # These calls do nothing.
    pointer, before = ctypes.c_void_p(7), control.count("device_blocks")
    assert code("cudaMalloc", ctypes.byref(pointer), 64) == Error.ILLEGAL_ADDRESS
    assert (pointer.value, control.count("device_blocks")) == (7, before)
    # The first error stays, and a query does not remove it.
    control.fail("cudaDeviceSynchronize", 1, Error.LAUNCH_FAILURE, sticky=True)
    assert code("cudaDeviceSynchronize") == Error.ILLEGAL_ADDRESS
    assert (last(), last(), code("cudaPeekAtLastError")) == (700, 700, 700)
    # These functions need no device.
    assert text("cudaGetErrorName", 700) == "cudaErrorIllegalAddress"
    for name in ("cudaRuntimeGetVersion", "cudaDriverGetVersion", "cuDriverGetVersion"):
        assert number(name) >= 12000


def test_every_call_returns_the_error_by_which_a_device_is_lost() -> None:
    alone(loses_its_device)


def loses_its_device_while_work_waits() -> None:
    stream = made("cudaStreamCreate")
    log = Log()
    control.stop(0)
    log.put(stream, "never")
    control.fail("cudaGetDevice", 1, Error.LAUNCH_FAILURE, sticky=True)
    assert code("cudaGetDevice", ctypes.byref(ctypes.c_int())) == Error.LAUNCH_FAILURE
    control.go_on(0)
    assert code("cudaStreamSynchronize", stream) == Error.LAUNCH_FAILURE
    time.sleep(SOON)
    assert log == []


def test_work_that_waits_does_not_run_on_a_lost_device() -> None:
    alone(loses_its_device_while_work_waits)


# Stopped devices


def test_nothing_runs_on_a_stopped_device_until_it_goes_on(things: Things) -> None:
    stream, log = things.stream(), Log()
    with control.stopped(0):
        log.put(stream, "work")
        time.sleep(SOON)
        assert (log, code("cudaStreamQuery", stream)) == ([], Error.NOT_READY)
    ok("cudaStreamSynchronize", stream)
    assert log == ["work"]


def stops_one_of_two() -> None:
    control.stop(1)
    stream, log = made("cudaStreamCreate"), Log()
    log.put(stream, "work")
    ok("cudaStreamSynchronize", stream)
    assert log == ["work"]


def test_another_device_runs_on() -> None:
    alone(stops_one_of_two, EMULATED_DEVICES="2")
