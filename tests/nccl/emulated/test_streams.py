"""Streams of the emulated runtime: order, the default streams, waits, host functions, the end."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time

import pytest

from tests.nccl.emulated import control
from tests.nccl.emulated.calls import (
    BLOCKING,
    FUNCTION,
    LEGACY,
    LONG,
    NON_BLOCKING,
    PER_THREAD,
    Error,
    Gate,
    Log,
    Things,
    alone,
    code,
    function,
    made,
    number,
    ok,
    put,
    settled_threads,
)

FLAGS = pytest.mark.parametrize("flags", [BLOCKING, NON_BLOCKING])
DEFAULT = pytest.mark.parametrize("default", [0, LEGACY])
SOON = 0.05
"""Seconds in which work that nothing holds would have run."""


def quiet(log: list[str]) -> list[str]:
    """What has run after a moment."""
    time.sleep(SOON)
    return list(log)


# Order


@FLAGS
def test_work_runs_in_order_and_the_host_goes_on(things: Things, flags: int) -> None:
    stream, log = things.stream(flags), Log()
    gate = things.gate(stream)
    for n in range(100):
        log.put(stream, str(n))
    assert code("cudaStreamQuery", stream) == Error.NOT_READY
    assert not log
    gate.open()
    ok("cudaStreamSynchronize", stream)
    assert log == [str(n) for n in range(100)]
    ok("cudaStreamQuery", stream)


@FLAGS
def test_the_host_waits_for_a_stream_or_the_device(things: Things, flags: int) -> None:
    stream, log = things.stream(flags), Log()
    for name, *arguments in (("cudaStreamSynchronize", stream), ("cudaDeviceSynchronize",)):
        gate = things.gate(stream)
        log.put(stream, str(name))
        gate.open_later()
        ok(name, *arguments)
        assert log[-1:] == [name]


@FLAGS
def test_streams_do_not_wait_for_each_other(things: Things, flags: int) -> None:
    first, second, log = things.stream(flags), things.stream(flags), Log()
    things.gate(first)
    log.put(second, "second")
    ok("cudaStreamSynchronize", second)
    assert log == ["second"]


@DEFAULT
def test_the_legacy_stream_waits_for_blocking_streams(things: Things, default: int) -> None:
    stream, log = things.stream(BLOCKING), Log()
    gate = things.gate(stream)
    log.put(default, "legacy")
    assert quiet(log) == []
    gate.open()
    ok("cudaStreamSynchronize", default)
    assert log == ["legacy"]


@DEFAULT
def test_blocking_streams_wait_for_the_legacy_stream(things: Things, default: int) -> None:
    stream, log = things.stream(BLOCKING), Log()
    gate = things.gate(default)
    log.put(stream, "blocking")
    assert quiet(log) == []
    gate.open()
    ok("cudaStreamSynchronize", stream)
    assert log == ["blocking"]


def test_an_action_of_the_legacy_stream_orders_two_blocking_ones(things: Things) -> None:
    first, second, log = things.stream(BLOCKING), things.stream(BLOCKING), Log()
    gate = things.gate(first)
    log.put(LEGACY, "legacy")
    log.put(second, "second")
    assert quiet(log) == []
    gate.open()
    ok("cudaStreamSynchronize", second)
    assert log == ["legacy", "second"]


@DEFAULT
def test_non_blocking_streams_and_the_legacy_stream_ignore_each_other(
    things: Things, default: int
) -> None:
    stream, log = things.stream(NON_BLOCKING), Log()
    gate = things.gate(stream)
    log.put(default, "legacy")
    ok("cudaStreamSynchronize", default)
    gate.open()
    things.gate(default)
    log.put(stream, "non-blocking")
    ok("cudaStreamSynchronize", stream)
    assert log == ["legacy", "non-blocking"]


def test_a_query_of_the_legacy_stream_is_one_of_the_blocking_ones(things: Things) -> None:
    stream = things.stream(BLOCKING)
    gate = things.gate(stream)
    assert code("cudaStreamQuery", LEGACY) == Error.NOT_READY
    gate.open()
    ok("cudaStreamSynchronize", LEGACY)
    ok("cudaStreamQuery", stream)


def test_a_query_of_a_blocking_stream_includes_its_wait_for_the_legacy_one(things: Things) -> None:
    stream = things.stream(BLOCKING)
    gate = things.gate(LEGACY)
    assert code("cudaStreamQuery", stream) == Error.NOT_READY
    gate.open()
    ok("cudaStreamSynchronize", stream)
    ok("cudaStreamQuery", LEGACY)


def _legacy_streams_of_two_devices() -> None:
    with Things() as things:
        stream = things.stream(BLOCKING)
        things.gate(stream)
        ok("cudaSetDevice", 1)
        assert code("emulated_stream_device", 0) == 1
        assert code("emulated_stream_device", stream) == 0
        log = Log()
        log.put(0, "device 1")
        ok("cudaStreamSynchronize", 0)
        ok("cudaDeviceSynchronize")
        ok("cudaStreamQuery", 0)
        assert log == ["device 1"]
        ok("cudaSetDevice", 0)
        assert code("cudaStreamQuery", 0) == Error.NOT_READY


def test_each_device_has_a_legacy_stream_of_its_own() -> None:
    alone(_legacy_streams_of_two_devices, EMULATED_DEVICES="2")


# Per-thread default streams


def in_thread(run: object) -> None:
    thread = threading.Thread(target=run)  # type: ignore[arg-type]
    thread.start()
    thread.join(LONG)
    assert not thread.is_alive()


def test_each_thread_has_a_default_stream_of_its_own(things: Things) -> None:
    log = Log()
    things.gate(PER_THREAD)
    ids = [number("cudaStreamGetId", PER_THREAD, type=ctypes.c_ulonglong)]

    def other() -> None:
        log.put(PER_THREAD, "other")
        ok("cudaStreamSynchronize", PER_THREAD)
        ids.append(number("cudaStreamGetId", PER_THREAD, type=ctypes.c_ulonglong))

    # The system may give the second thread the number of the first, which has ended.
    in_thread(other)
    in_thread(other)
    assert log == ["other", "other"]
    assert len(set(ids)) == 3


def test_the_per_thread_stream_is_a_blocking_one(things: Things) -> None:
    log = Log()
    gate = things.gate(LEGACY)
    log.put(PER_THREAD, "thread")
    assert quiet(log) == []
    gate.open()
    ok("cudaStreamSynchronize", PER_THREAD)
    assert log == ["thread"]


def test_work_of_a_thread_that_ended_goes_on(things: Things) -> None:
    log, gates = Log(), list[Gate]()

    def other() -> None:
        gates.append(things.gate(PER_THREAD))
        log.put(PER_THREAD, "other")

    # The thread of the legacy stream stays.
    assert put(LEGACY, lambda: None) == 0
    before = settled_threads()
    in_thread(other)
    assert code("cudaStreamQuery", LEGACY) == Error.NOT_READY
    gates[0].open()
    ok("cudaStreamSynchronize", LEGACY)
    assert log == ["other"]
    assert settled_threads() == before


# Creation and destruction


def test_what_a_stream_is_made_with_can_be_asked(things: Things) -> None:
    stream = things.stream(NON_BLOCKING)
    assert number("cudaStreamGetFlags", stream) == NON_BLOCKING
    assert number("cudaStreamGetPriority", stream) == 0
    assert number("cudaStreamGetFlags", things.stream(BLOCKING)) == BLOCKING
    handle = ctypes.c_void_p()
    assert code("cudaStreamCreateWithFlags", ctypes.byref(handle), 2) == Error.INVALID_VALUE
    assert code("cudaStreamCreate", None) == Error.INVALID_VALUE


@pytest.mark.parametrize(("asked", "got"), [(0, 0), (3, 0), (-3, -3), (-100, -5)])
def test_a_priority_beyond_the_range_is_set_to_its_end(asked: int, got: int) -> None:
    least, greatest = ctypes.c_int(), ctypes.c_int()
    ok("cudaDeviceGetStreamPriorityRange", ctypes.byref(least), ctypes.byref(greatest))
    assert (least.value, greatest.value) == (0, -5)
    stream = made("cudaStreamCreateWithPriority", NON_BLOCKING, ctypes.c_int(asked))
    assert number("cudaStreamGetPriority", stream) == got
    ok("cudaStreamDestroy", stream)


@FLAGS
def test_work_of_a_destroyed_stream_goes_on(things: Things, flags: int) -> None:
    stream, log = made("cudaStreamCreateWithFlags", flags), Log()
    gate = things.gate(stream)
    log.put(stream, "late")
    begin = time.monotonic()
    ok("cudaStreamDestroy", stream)
    assert time.monotonic() - begin < LONG / 2
    expected = Error.NOT_READY if flags == BLOCKING else Error.SUCCESS
    assert code("cudaStreamQuery", LEGACY) == expected
    gate.open_later()
    ok("cudaDeviceSynchronize")
    assert log == ["late"]


def test_a_thread_begins_with_the_first_work_and_ends_with_the_stream() -> None:
    before = settled_threads()
    stream = made("cudaStreamCreateWithFlags", NON_BLOCKING)
    assert control.count("threads") == before
    assert put(stream, lambda: None) == 0
    assert control.count("threads") == before + 1
    ok("cudaStreamDestroy", stream)
    assert settled_threads() == before


def test_a_handle_after_its_end_is_found_and_so_is_one_that_never_was(things: Things) -> None:
    stream = made("cudaStreamCreateWithFlags", NON_BLOCKING)
    ok("cudaStreamDestroy", stream)
    # A new one, which must not get the old handle.
    things.stream()
    event = things.event()
    for handle, error in ((stream, Error.DESTROYED), (0x5EED, Error.INVALID_HANDLE)):
        assert code("cudaStreamDestroy", handle) == error
        assert code("cudaStreamQuery", handle) == error
        assert code("cudaStreamSynchronize", handle) == error
        assert code("cudaEventRecord", event, handle) == error
        assert code("cudaStreamWaitEvent", handle, event, 0) == error
        assert put(handle, lambda: None) == error
        assert code("emulated_stream_device", handle) == -1


@pytest.mark.parametrize("default", [0, LEGACY, PER_THREAD])
def test_the_default_streams_cannot_be_destroyed(default: int) -> None:
    assert code("cudaStreamDestroy", default) == Error.INVALID_HANDLE
    ok("cudaStreamSynchronize", default)


# Host functions


def test_a_host_function_runs_in_the_stream_s_order(things: Things) -> None:
    stream, log = things.stream(), Log()
    gate = things.gate(stream)
    ok("cudaLaunchHostFunc", stream, function(lambda: log.append("host")), None)
    log.put(stream, "device")
    gate.open()
    ok("cudaStreamSynchronize", stream)
    assert log == ["host", "device"]
    assert code("cudaLaunchHostFunc", stream, None, None) == Error.INVALID_VALUE


def test_a_host_function_may_not_call_cuda(things: Things) -> None:
    stream, codes = things.stream(), list[int]()
    other, event = things.stream(), things.event()

    def calls() -> None:
        codes.append(code("cudaStreamQuery", other))
        codes.append(code("cudaEventRecord", event, other))

    ok("cudaLaunchHostFunc", stream, function(calls), None)
    ok("cudaStreamSynchronize", stream)
    assert codes == [Error.NOT_PERMITTED] * 2
    assert put(stream, lambda: codes.append(code("cudaStreamQuery", other))) == 0
    ok("cudaStreamSynchronize", stream)
    assert codes[2:] == [0]


CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)


def test_a_callback_gets_the_stream_and_its_state(things: Things) -> None:
    stream, got = things.stream(), list[tuple[int | None, int, int | None]]()
    call = CALLBACK(lambda *arguments: got.append(arguments))
    ok("cudaStreamAddCallback", stream, call, 7, 0)
    ok("cudaStreamSynchronize", stream)
    assert got == [(stream, 0, 7)]
    assert code("cudaStreamAddCallback", stream, call, 7, 1) == Error.INVALID_VALUE
    assert code("cudaStreamAddCallback", stream, None, 7, 0) == Error.INVALID_VALUE


# Lost and stopped devices


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
    # The work that holds the stream has not ended.
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
    Log().put(0, "never")
    ok("cudaSetDevice", 1)
    log = Log()
    log.put(0, "device 1")
    ok("cudaStreamSynchronize", 0)
    assert log == ["device 1"]
    control.go_on(0)


def test_a_stopped_device_holds_no_other() -> None:
    alone(_a_stopped_device_beside_another, EMULATED_DEVICES="2")


# Processes


def _a_fork() -> None:
    stream = made("cudaStreamCreateWithFlags", NON_BLOCKING)
    gate = Gate(stream)
    gate.begun()
    child = os.fork()
    if not child:
        asked = ("cudaStreamSynchronize", "cudaStreamQuery", "cudaStreamDestroy")
        codes = [code(name, stream) for name in asked]
        codes.append(code("cudaDeviceSynchronize"))
        print(codes, flush=True)
        sys.exit(0)
    _, status = os.waitpid(child, 0)
    assert status == 0
    gate.open()
    ok("cudaStreamSynchronize", stream)


def test_a_fork_is_told_that_it_has_no_device() -> None:
    assert alone(_a_fork) == f"{[int(Error.INITIALIZATION)] * 4}\n"


def _a_fork_before_any_use() -> None:
    number("cudaRuntimeGetVersion")
    child = os.fork()
    if not child:
        stream = made("cudaStreamCreateWithFlags", NON_BLOCKING)
        ok("cudaStreamSynchronize", stream)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert status == 0


def test_a_fork_of_what_has_not_used_the_device_has_one() -> None:
    alone(_a_fork_before_any_use)


def _an_end_with_work_pending() -> None:
    for flags in (BLOCKING, NON_BLOCKING):
        stream = made("cudaStreamCreateWithFlags", flags)
        Gate(stream).begun()
        Log().put(stream, "never")
    Log().put(LEGACY, "never")


def test_a_process_ends_though_work_is_pending() -> None:
    begin = time.monotonic()
    alone(_an_end_with_work_pending)
    assert time.monotonic() - begin < LONG


# Speed


def enqueue_c(stream: int, name: str, argument: int) -> None:
    """Put a function of the C library on a stream: Python's lock has no part in its time."""
    run = ctypes.cast(getattr(ctypes.CDLL(None), name), ctypes.c_void_p).value
    ok("emulated_enqueue", stream, run, argument, None)


def test_small_work_takes_microseconds(things: Things) -> None:
    stream, begin = things.stream(), time.perf_counter()
    for _ in range(10_000):
        enqueue_c(stream, "abs", 1)
    ok("cudaStreamSynchronize", stream)
    assert time.perf_counter() - begin < 3


@pytest.mark.parametrize("of_event", [False, True])
def test_a_wait_of_the_host_ends_with_the_work(things: Things, of_event: bool) -> None:
    stream, event, least = things.stream(), things.event(), LONG
    for _ in range(10):
        begin = time.perf_counter()
        for _ in range(20):
            enqueue_c(stream, "usleep", 300)
            ok("cudaEventRecord", event, stream)
            if of_event:
                ok("cudaEventSynchronize", event)
            else:
                ok("cudaStreamSynchronize", stream)
        least = min(least, time.perf_counter() - begin)
    assert least < 20 * 0.003, "it looks only now and then"


def test_what_work_holds_is_released_once_it_has_run(things: Things) -> None:
    stream, released = things.stream(), list[int]()
    release = FUNCTION(lambda data: released.append(data))
    ok("emulated_enqueue", stream, function(lambda: None), 5, release)
    ok("cudaStreamSynchronize", stream)
    assert released == [5]
    assert code("emulated_enqueue", 0x5EED, function(lambda: None), 6, release)
    assert released == [5, 6]


# By CuPy


def test_streams_by_cupy() -> None:
    cupy = pytest.importorskip("cupy")
    before, got = control.count("streams"), list[object]()
    stream = cupy.cuda.Stream(non_blocking=True, priority=-3)
    assert (stream.is_non_blocking, stream.priority, stream.done) == (True, -3, True)
    assert not cupy.cuda.Stream().is_non_blocking
    for default in (cupy.cuda.Stream.null, cupy.cuda.Stream.ptds):
        assert default.done
        default.synchronize()
    gate = Gate(stream.ptr)
    stream.launch_host_func(got.append, "host")
    stream.add_callback(lambda *arguments: got.append(arguments[1:]), "data")
    assert not stream.done
    gate.open()
    stream.synchronize()
    assert got == ["host", (0, "data")]
    got.clear()
    # The callback's closure.
    del stream
    assert control.count("streams") == before
