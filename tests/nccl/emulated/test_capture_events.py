"""Layer 3b: events recorded inside and outside of a capture."""

from __future__ import annotations

import ctypes

import pytest

from tests.nccl.emulated.calls import Error, Log, Things, code, ok
from tests.nccl.emulated.captures import MODES, begin, end

EXTERNAL = 1


def test_a_captured_stream_cannot_wait_for_an_event_of_outside(things: Things) -> None:
    stream, other = things.stream(), things.stream()
    for event in (things.event(), things.recorded(other), things.recorded(stream)):
        begin(stream)
        assert code("cudaStreamWaitEvent", stream, event, 0) == Error.ISOLATION
        assert end(stream) == Error.INVALIDATED


def test_unknown_flags_are_refused_in_a_capture_too(things: Things) -> None:
    stream, event = things.stream(), things.event()
    begin(stream)
    assert code("cudaEventRecordWithFlags", event, stream, 2) == Error.INVALID_VALUE
    assert code("cudaStreamWaitEvent", stream, event, 2) == Error.INVALID_VALUE
    things.captured(stream)


def test_the_end_of_a_capture_ends_its_events(things: Things) -> None:
    stream, other = things.stream(), things.stream()
    begin(stream)
    event = things.recorded(stream)
    things.captured(stream)
    ms = ctypes.byref(ctypes.c_float())
    assert code("cudaStreamWaitEvent", other, event, 0) == Error.CAPTURED_EVENT
    assert code("cudaEventQuery", event) == Error.CAPTURED_EVENT
    assert code("cudaEventSynchronize", event) == Error.CAPTURED_EVENT
    assert code("cudaEventElapsedTime", ms, event, event) == Error.CAPTURED_EVENT
    begin(other)
    assert code("cudaStreamWaitEvent", other, event, 0) == Error.CAPTURED_EVENT
    assert end(other) == Error.INVALIDATED
    # until the next record
    ok("cudaEventRecord", event, stream)
    ok("cudaEventSynchronize", event)
    ok("cudaStreamWaitEvent", other, event, 0)


@pytest.mark.parametrize("name", ["cudaEventQuery", "cudaEventSynchronize"])
@MODES
def test_a_look_at_a_captured_event_spoils_its_capture(
    things: Things, mode: int, name: str
) -> None:
    stream = things.stream()
    begin(stream, mode)
    assert code(name, things.recorded(stream)) == Error.CAPTURED_EVENT
    assert end(stream) == Error.INVALIDATED


def test_an_external_record_is_one_of_each_launch(things: Things) -> None:
    stream, log = things.stream(), Log()
    event = things.event()
    begin(stream)
    log.put(stream, "first")
    ok("cudaEventRecordWithFlags", event, stream, EXTERNAL)
    log.put(stream, "second")
    exec = things.exec(things.captured(stream))
    ok("cudaEventQuery", event)
    for n in (1, 2):
        gate = things.gate(stream)
        ok("cudaGraphLaunch", exec, stream)
        assert code("cudaEventQuery", event) == Error.NOT_READY
        gate.open()
        ok("cudaEventSynchronize", event)
        ok("cudaStreamSynchronize", stream)
        assert log == ["first", "second"] * n


def test_an_external_wait_is_for_what_is_recorded_at_the_launch(things: Things) -> None:
    stream, other, log = things.stream(), things.stream(), Log()
    event = things.event()
    begin(stream)
    ok("cudaStreamWaitEvent", stream, event, EXTERNAL)
    log.put(stream, "captured")
    exec = things.exec(things.captured(stream))
    ok("cudaGraphLaunch", exec, stream)
    ok("cudaStreamSynchronize", stream)
    gate = things.gate(other)
    log.put(other, "before")
    ok("cudaEventRecord", event, other)
    ok("cudaGraphLaunch", exec, stream)
    assert code("cudaStreamQuery", stream) == Error.NOT_READY
    gate.open()
    ok("cudaStreamSynchronize", stream)
    assert log == ["captured", "before", "captured"]
