"""Layer 3b: work that a capture records, and does not run."""

from __future__ import annotations

import ctypes

import pytest

from tests.nccl.emulated import control
from tests.nccl.emulated.calls import (
    BLOCKING,
    LEGACY,
    NON_BLOCKING,
    PER_THREAD,
    Error,
    Log,
    Things,
    code,
    function,
    ok,
)
from tests.nccl.emulated.captures import (
    ACTIVE,
    GLOBAL,
    MODES,
    NONE,
    RELAXED,
    begin,
    end,
    run,
    status,
)

# Recorded work


@MODES
@pytest.mark.parametrize("flags", [BLOCKING, NON_BLOCKING])
def test_work_is_captured_and_does_not_run(things: Things, mode: int, flags: int) -> None:
    stream, log = things.stream(flags), Log()
    log.put(stream, "before")
    begin(stream, mode)
    assert status(stream) == ACTIVE
    assert control.count("captures") == 1
    log.put(stream, "captured")
    graph = things.captured(stream)
    assert (status(stream), control.count("captures")) == (NONE, 0)
    log.put(stream, "after")
    ok("cudaStreamSynchronize", stream)
    assert log == ["before", "after"]
    run(things, graph)
    run(things, graph)
    assert log == ["before", "after", "captured", "captured"]


def test_the_per_thread_stream_can_be_captured(things: Things) -> None:
    log = Log()
    begin(PER_THREAD)
    log.put(PER_THREAD, "captured")
    run(things, things.captured(PER_THREAD))
    assert log == ["captured"]


@pytest.mark.parametrize("default", [0, LEGACY])
def test_the_legacy_stream_cannot_be_captured(default: int) -> None:
    assert code("cudaStreamBeginCapture", default, RELAXED) == Error.UNSUPPORTED


def test_a_capture_is_begun_once_and_ended_once(things: Things) -> None:
    stream = things.stream()
    assert end(stream) == Error.ILLEGAL_STATE
    begin(stream)
    assert code("cudaStreamBeginCapture", stream, GLOBAL) == Error.ILLEGAL_STATE
    assert status(stream) == ACTIVE
    things.captured(stream)
    assert end(stream) == Error.ILLEGAL_STATE
    assert code("cudaStreamBeginCapture", stream, 3) == Error.INVALID_VALUE
    assert code("cudaStreamEndCapture", stream, None) == Error.INVALID_VALUE


def test_a_host_function_is_captured_and_a_callback_is_not(things: Things) -> None:
    stream, log = things.stream(), Log()
    begin(stream)
    ok("cudaLaunchHostFunc", stream, function(lambda: log.append("host")), None)
    run(things, things.captured(stream))
    assert log == ["host"]
    begin(stream)
    call = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)(lambda *_: None)
    assert code("cudaStreamAddCallback", stream, call, None, 0) == Error.UNSUPPORTED
    assert end(stream) == Error.INVALIDATED


def test_work_that_was_there_before_is_no_dependency(things: Things) -> None:
    stream, log = things.stream(), Log()
    gate = things.gate(stream)
    begin(stream)
    log.put(stream, "captured")
    run(things, things.captured(stream))
    assert log == ["captured"]
    gate.open()


# Captures by CuPy


def test_a_capture_by_cupy(things: Things) -> None:
    cupy = pytest.importorskip("cupy")
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        array = cupy.empty(100, "uint8")
        array.data.memset_async(1, array.nbytes)
        stream.begin_capture()
        assert stream.is_capturing()
        array.data.memset_async(2, array.nbytes)
        graph = stream.end_capture()
        assert (array.get() == 1).all()
        graph.launch()
        assert (array.get() == 2).all()
        del graph
        stream.begin_capture(cupy.cuda.runtime.streamCaptureModeThreadLocal)
        with pytest.raises(cupy.cuda.runtime.CUDARuntimeError, match="Unsupported"):
            cupy.cuda.runtime.malloc(512)
        with pytest.raises(RuntimeError, match="invalidated"):
            stream.is_capturing()
        with pytest.raises(cupy.cuda.runtime.CUDARuntimeError, match="Invalidated"):
            stream.end_capture()
        array.data.memset_async(3, array.nbytes)
        assert (array.get() == 3).all()
    del stream
