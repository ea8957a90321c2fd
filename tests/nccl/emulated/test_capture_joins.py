"""Layer 3b: streams that enter a capture, and join it before its end."""

from __future__ import annotations

import ctypes

import pytest

from tests.nccl.emulated import control
from tests.nccl.emulated.calls import NON_BLOCKING, Error, Log, Things, code, made, ok, put
from tests.nccl.emulated.captures import (
    ACTIVE,
    INVALID,
    MODES,
    NONE,
    RELAXED,
    begin,
    end,
    fork,
    in_thread,
    join,
    run,
    status,
)


def test_an_event_draws_a_stream_in_and_another_joins_it(things: Things) -> None:
    origin, other, log = things.stream(), things.stream(), Log()
    begin(origin)
    log.put(origin, "first")
    fork(things, origin, other)
    assert status(other) == ACTIVE
    log.put(other, "second")
    join(things, origin, other)
    log.put(origin, "third")
    graph = things.captured(origin)
    assert status(other) == NONE
    assert log == []
    run(things, graph)
    assert log == ["first", "second", "third"]


def test_a_stream_without_work_of_its_own_need_not_be_joined(things: Things) -> None:
    origin, other = things.stream(), things.stream()
    begin(origin)
    put(origin, lambda: None)
    fork(things, origin, other)
    things.captured(origin)


@pytest.mark.parametrize("joined_before", [False, True])
def test_a_stream_whose_work_is_not_joined(things: Things, joined_before: bool) -> None:
    origin, other, log = things.stream(), things.stream(), Log()
    begin(origin)
    fork(things, origin, other)
    log.put(other, "joined")
    if joined_before:
        join(things, origin, other)
        log.put(other, "not joined")
    assert end(origin) == Error.UNJOINED
    assert status(other) == NONE


def test_streams_are_joined_through_others(things: Things) -> None:
    origin, second, third, log = (things.stream(), things.stream(), things.stream(), Log())
    begin(origin)
    fork(things, origin, second)
    log.put(second, "second")
    fork(things, second, third)
    log.put(third, "third")
    join(things, origin, third)
    run(things, things.captured(origin))
    assert log == ["second", "third"]


def test_a_destroyed_stream_must_have_been_joined(things: Things) -> None:
    origin, log = things.stream(), Log()
    for joined in (True, False):
        other = made("cudaStreamCreateWithFlags", NON_BLOCKING)
        begin(origin)
        fork(things, origin, other)
        log.put(other, "other")
        if joined:
            join(things, origin, other)
        ok("cudaStreamDestroy", other)
        if joined:
            things.captured(origin)
        else:
            assert end(origin) == Error.UNJOINED


def test_a_capture_ends_with_its_stream(things: Things) -> None:
    origin, other = made("cudaStreamCreateWithFlags", NON_BLOCKING), things.stream()
    before = control.count("graphs")
    begin(origin)
    fork(things, origin, other)
    ok("cudaStreamDestroy", origin)
    assert status(other) == NONE
    assert (control.count("captures"), control.count("graphs")) == (0, before)
    graph = ctypes.c_void_p()
    assert code("cudaStreamEndCapture", origin, ctypes.byref(graph)) == Error.DESTROYED


def test_two_captures_cannot_be_merged(things: Things) -> None:
    first, second = things.stream(), things.stream()
    begin(first)
    begin(second)
    event = things.recorded(first)
    assert code("cudaStreamWaitEvent", second, event, 0) == Error.MERGE
    assert (status(first), status(second)) == (INVALID, INVALID)
    assert end(first) == Error.INVALIDATED
    assert end(second) == Error.INVALIDATED


def test_the_end_is_on_the_stream_of_the_begin(things: Things) -> None:
    origin, other = things.stream(), things.stream()
    begin(origin)
    fork(things, origin, other)
    graph = ctypes.c_void_p()
    assert code("cudaStreamEndCapture", other, ctypes.byref(graph)) == Error.UNMATCHED
    assert end(origin) == Error.INVALIDATED


@MODES
def test_the_end_is_in_the_thread_of_the_begin(things: Things, mode: int) -> None:
    stream = things.stream()
    begin(stream, mode)
    graph = ctypes.c_void_p()
    got = in_thread(lambda: code("cudaStreamEndCapture", stream, ctypes.byref(graph)))
    if mode == RELAXED:
        assert got == [0]
        ok("cudaGraphDestroy", graph.value or 0)
    else:
        assert got == [Error.WRONG_THREAD]
        assert end(stream) == Error.INVALIDATED
