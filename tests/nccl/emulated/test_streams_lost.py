"""Layer 3b: streams of lost and of stopped devices."""

from __future__ import annotations

import ctypes
import threading
import time

from tests.nccl.emulated import control
from tests.nccl.emulated.calls import (
    CALLBACK,
    LONG,
    NON_BLOCKING,
    SOON,
    Error,
    Gate,
    Log,
    Things,
    alone,
    code,
    function,
    made,
    ok,
    quiet,
)


def _a_lost_device() -> None:
    log, states = Log(), list[int]()
    stream = made("cudaStreamCreateWithFlags", NON_BLOCKING)
    event = made("cudaEventCreate")
    gate = Gate(stream)
    log.put(stream, "device")
    ok("cudaLaunchHostFunc", stream, function(lambda: log.append("host")), None)
    call = CALLBACK(lambda _stream, state, _data: states.append(state))
    ok("cudaStreamAddCallback", stream, call, None, 0)
    ok("cudaEventRecord", event, stream)
    gate.begun()
    waited = list[int]()
    thread = threading.Thread(target=lambda: waited.append(code("cudaStreamSynchronize", stream)))
    thread.start()
    time.sleep(SOON)
    control.fail("cudaEventCreate", 1, Error.LAUNCH_FAILURE, sticky=True)
    begin = time.monotonic()
    assert code("cudaEventCreate", ctypes.byref(ctypes.c_void_p())) == Error.LAUNCH_FAILURE
    thread.join(LONG)
    for name, *arguments in (
        ("cudaStreamSynchronize", stream),
        ("cudaStreamQuery", stream),
        ("cudaEventQuery", event),
        ("cudaEventSynchronize", event),
        ("cudaDeviceSynchronize",),
    ):
        waited.append(code(name, *arguments))
    # The work that blocks the stream has not ended.
    assert time.monotonic() - begin < LONG / 4
    assert waited == [Error.LAUNCH_FAILURE] * 6
    gate.open()
    end = time.monotonic() + LONG
    while not states:
        assert time.monotonic() < end
        time.sleep(0.001)
    assert states == [Error.LAUNCH_FAILURE]
    assert log == []


def test_nothing_runs_on_a_lost_device_and_waits_end_at_once() -> None:
    alone(_a_lost_device)


def test_nothing_runs_on_a_stopped_device(things: Things) -> None:
    stream, log = things.stream(), Log()
    event = things.event()
    with control.stopped(0):
        log.put(stream, "device")
        ok("cudaLaunchHostFunc", stream, function(lambda: log.append("host")), None)
        ok("cudaEventRecord", event, stream)
        assert quiet(log) == []
        assert code("cudaStreamQuery", stream) == Error.NOT_READY
        assert code("cudaEventQuery", event) == Error.NOT_READY
    ok("cudaEventSynchronize", event)
    assert log == ["device", "host"]


def _a_stopped_device_beside_another() -> None:
    control.stop(0)
    stopped = Log()
    stopped.put(0, "device 0")
    ok("cudaSetDevice", 1)
    log = Log()
    log.put(0, "device 1")
    ok("cudaStreamSynchronize", 0)
    assert log == ["device 1"]
    assert stopped == []
    control.go_on(0)
    # Its thread calls Python, which must not have ended by then.
    ok("cudaSetDevice", 0)
    ok("cudaStreamSynchronize", 0)
    assert stopped == ["device 0"]


def test_a_stopped_device_holds_no_other() -> None:
    alone(_a_stopped_device_beside_another, EMULATED_DEVICES="2")
