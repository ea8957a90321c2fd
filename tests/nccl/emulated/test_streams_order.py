"""Layer 3b: the order of work on streams, the default streams among them."""

from __future__ import annotations

import ctypes
import threading

import pytest

from tests.nccl.emulated import control
from tests.nccl.emulated.calls import (
    BLOCKING,
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
    number,
    ok,
    put,
    quiet,
    settled_threads,
)

FLAGS = pytest.mark.parametrize("flags", [BLOCKING, NON_BLOCKING])
DEFAULT = pytest.mark.parametrize("default", [0, LEGACY])


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

    # The thread of the legacy stream continues.
    assert put(LEGACY, lambda: None) == 0
    before = settled_threads()
    in_thread(other)
    assert code("cudaStreamQuery", LEGACY) == Error.NOT_READY
    gates[0].open()
    ok("cudaStreamSynchronize", LEGACY)
    assert log == ["other"]
    assert settled_threads() == before


# Streams of CuPy


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
    # the callback's closure
    del stream
    assert control.count("streams") == before
