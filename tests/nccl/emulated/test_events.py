"""Events of the emulated runtime: records, waits, times, devices, and their end."""

from __future__ import annotations

import ctypes
import time

import pytest

from tests.nccl.emulated.calls import (
    BLOCKING,
    LEGACY,
    Error,
    Gate,
    Log,
    Things,
    alone,
    code,
    made,
    number,
    ok,
    put,
)

BLOCKING_SYNC, DISABLE_TIMING, INTERPROCESS = 1, 2, 4
"""Flags of events, as in driver_types.h."""

EXTERNAL = 1
"""The flag for captures of cudaEventRecordWithFlags and cudaStreamWaitEvent."""


def elapsed(start: int, end: int) -> int:
    return code("cudaEventElapsedTime", ctypes.byref(ctypes.c_float()), start, end)


def milliseconds(start: int, end: int) -> float:
    value = ctypes.c_float()
    ok("cudaEventElapsedTime", ctypes.byref(value), start, end)
    return value.value


# Records


def test_an_event_that_was_never_recorded_is_complete(things: Things) -> None:
    event, stream = things.event(), things.stream()
    ok("cudaEventQuery", event)
    ok("cudaEventSynchronize", event)
    ok("cudaStreamWaitEvent", stream, event, 0)
    ok("cudaStreamSynchronize", stream)


@pytest.mark.parametrize("flags", [0, BLOCKING_SYNC, DISABLE_TIMING, 3])
def test_an_event_is_complete_once_all_before_its_record_has_run(
    things: Things, flags: int
) -> None:
    stream, event, log = things.stream(), things.event(flags), Log()
    before, after = things.gate(stream), None
    log.put(stream, "before")
    ok("cudaEventRecord", event, stream)
    after = things.gate(stream)
    assert code("cudaEventQuery", event) == Error.NOT_READY
    before.open()
    ok("cudaEventSynchronize", event)
    assert log == ["before"]
    ok("cudaEventQuery", event)
    assert code("cudaStreamQuery", stream) == Error.NOT_READY
    after.open()


def test_another_record_replaces_the_first(things: Things) -> None:
    stream, event = things.stream(), things.event()
    ok("cudaEventRecord", event, stream)
    ok("cudaEventSynchronize", event)
    gate = things.gate(stream)
    ok("cudaEventRecord", event, stream)
    assert code("cudaEventQuery", event) == Error.NOT_READY
    gate.open()
    ok("cudaEventSynchronize", event)


def test_a_record_on_the_legacy_stream_takes_in_the_blocking_ones(things: Things) -> None:
    stream, event = things.stream(BLOCKING), things.event()
    gate = things.gate(stream)
    ok("cudaEventRecord", event, LEGACY)
    assert code("cudaEventQuery", event) == Error.NOT_READY
    gate.open()
    ok("cudaEventSynchronize", event)


# Waits of streams


def test_a_stream_waits_for_what_the_event_has_recorded_then(things: Things) -> None:
    first, second, log = things.stream(), things.stream(), Log()
    event = things.event()
    gate = things.gate(first)
    log.put(first, "first")
    ok("cudaEventRecord", event, first)
    ok("cudaStreamWaitEvent", second, event, 0)
    log.put(second, "second")
    # A later record does not change an existing wait.
    later = things.gate(first)
    ok("cudaEventRecord", event, first)
    time.sleep(0.05)
    assert log == []
    gate.open()
    ok("cudaStreamSynchronize", second)
    assert log == ["first", "second"]
    later.open()


def test_a_wait_is_no_wait_of_the_host_nor_of_other_streams(things: Things) -> None:
    first, second, third, log = things.stream(), things.stream(), things.stream(), Log()
    event = things.event()
    gate = things.gate(first)
    ok("cudaEventRecord", event, first)
    ok("cudaStreamWaitEvent", second, event, 0)
    log.put(third, "third")
    ok("cudaStreamSynchronize", third)
    assert code("cudaStreamQuery", second) == Error.NOT_READY
    gate.open()


def test_a_wait_of_the_legacy_stream_holds_the_blocking_ones(things: Things) -> None:
    first, blocking, log = things.stream(), things.stream(BLOCKING), Log()
    event = things.event()
    gate = things.gate(first)
    ok("cudaEventRecord", event, first)
    ok("cudaStreamWaitEvent", LEGACY, event, 0)
    log.put(blocking, "blocking")
    time.sleep(0.05)
    assert log == []
    gate.open()
    ok("cudaStreamSynchronize", blocking)
    assert log == ["blocking"]


# Times


def test_the_time_between_two_events(things: Things) -> None:
    stream, start, end = things.stream(), things.event(), things.event()
    ok("cudaEventRecord", start, stream)
    assert put(stream, lambda: time.sleep(0.05)) == 0
    ok("cudaEventRecord", end, stream)
    ok("cudaEventSynchronize", end)
    assert 50 <= milliseconds(start, end) < 1000
    assert -1000 < milliseconds(end, start) <= -50


def test_there_is_no_time_of_what_was_not_recorded_or_has_not_come(things: Things) -> None:
    stream, start, end = things.stream(), things.event(), things.event()
    assert elapsed(start, end) == Error.INVALID_HANDLE
    ok("cudaEventRecord", start, stream)
    assert elapsed(start, end) == Error.INVALID_HANDLE
    gate = things.gate(stream)
    ok("cudaEventRecord", end, stream)
    assert elapsed(start, end) == Error.NOT_READY
    gate.open()
    ok("cudaEventSynchronize", end)
    assert elapsed(start, end) == 0
    assert code("cudaEventElapsedTime", None, start, end) == Error.INVALID_VALUE


def test_an_event_without_timing_has_no_time(things: Things) -> None:
    stream, start, end = things.stream(), things.event(), things.event(DISABLE_TIMING)
    for event in (start, end):
        ok("cudaEventRecord", event, stream)
        ok("cudaEventSynchronize", event)
    assert elapsed(start, end) == Error.INVALID_HANDLE


# Flags and handles


def create(flags: int) -> int:
    return code("cudaEventCreateWithFlags", ctypes.byref(ctypes.c_void_p()), flags)


def test_events_between_processes_are_refused_by_name(capfd: pytest.CaptureFixture[str]) -> None:
    assert create(INTERPROCESS) == Error.INVALID_VALUE
    assert create(INTERPROCESS | DISABLE_TIMING) == Error.NOT_SUPPORTED
    assert capfd.readouterr().err == "emulated: cudaEventInterprocess is not emulated\n"


def test_unknown_flags_are_refused(things: Things) -> None:
    stream, event = things.stream(), things.event()
    assert create(8) == Error.INVALID_VALUE
    assert code("cudaEventCreate", None) == Error.INVALID_VALUE
    assert code("cudaEventRecordWithFlags", event, stream, 2) == Error.INVALID_VALUE
    assert code("cudaStreamWaitEvent", stream, event, 2) == Error.INVALID_VALUE


def test_the_external_flag_is_invalid_outside_of_captures(things: Things) -> None:
    stream, event = things.stream(), things.event()
    assert code("cudaEventRecordWithFlags", event, stream, EXTERNAL) == Error.INVALID_VALUE
    assert code("cudaStreamWaitEvent", stream, event, EXTERNAL) == Error.INVALID_VALUE
    ok("cudaEventRecordWithFlags", event, stream, 0)


def test_an_event_may_be_destroyed_while_its_record_is_pending(things: Things) -> None:
    first, second, log = things.stream(), things.stream(), Log()
    event = made("cudaEventCreate")
    gate = things.gate(first)
    log.put(first, "first")
    ok("cudaEventRecord", event, first)
    ok("cudaStreamWaitEvent", second, event, 0)
    ok("cudaEventDestroy", event)
    log.put(second, "second")
    gate.open()
    ok("cudaStreamSynchronize", second)
    assert log == ["first", "second"]


def test_a_handle_after_its_end_is_found_and_so_is_one_that_never_was(things: Things) -> None:
    stream, other = things.stream(), things.event()
    event = made("cudaEventCreate")
    ok("cudaEventDestroy", event)
    things.event()
    for handle, error in (
        (event, Error.DESTROYED),
        (0, Error.INVALID_HANDLE),
        (stream, Error.INVALID_HANDLE),
    ):
        assert code("cudaEventDestroy", handle) == error
        assert code("cudaEventQuery", handle) == error
        assert code("cudaEventSynchronize", handle) == error
        assert code("cudaEventRecord", handle, stream) == error
        assert code("cudaStreamWaitEvent", stream, handle, 0) == error
        assert elapsed(handle, other) == error
        assert elapsed(other, handle) == error


# Devices


def _events_of_two_devices() -> None:
    here, stream = made("cudaEventCreate"), made("cudaStreamCreateWithFlags", 1)
    ok("cudaSetDevice", 1)
    there, other = made("cudaEventCreate"), made("cudaStreamCreateWithFlags", 1)
    # An event is recorded on its own device alone, whatever device is current.
    assert code("cudaEventRecord", here, other) == Error.INVALID_HANDLE
    assert code("cudaEventRecord", here, LEGACY) == Error.INVALID_HANDLE
    gate, log = Gate(stream), Log()
    ok("cudaEventRecord", here, stream)
    assert code("cudaEventQuery", here) == Error.NOT_READY
    # A wait is allowed on any device.
    ok("cudaStreamWaitEvent", other, here, 0)
    log.put(other, "device 1")
    time.sleep(0.05)
    assert log == []
    gate.open()
    ok("cudaEventSynchronize", here)
    ok("cudaStreamSynchronize", other)
    assert log == ["device 1"]
    # No time is measured between devices.
    ok("cudaEventRecord", there, other)
    ok("cudaEventSynchronize", there)
    assert elapsed(here, there) == Error.INVALID_HANDLE
    assert number("cudaStreamGetDevice", stream) == 0
    assert number("cudaStreamGetDevice", other) == 1


def test_events_of_two_devices() -> None:
    alone(_events_of_two_devices, EMULATED_DEVICES="2")


def test_events_by_cupy() -> None:
    cupy = pytest.importorskip("cupy")
    with cupy.cuda.Stream(non_blocking=True) as stream:
        start, end = cupy.cuda.Event(), cupy.cuda.Event()
        stream.record(start)
        array = cupy.empty(1000, "uint8")
        array.data.memset_async(7, array.nbytes)
        stream.record(end)
        end.synchronize()
        assert end.done
        assert cupy.cuda.get_elapsed_time(start, end) > 0
        assert (array.get() == 7).all()
