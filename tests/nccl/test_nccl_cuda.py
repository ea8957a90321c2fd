"""Layer 0: calls of CUDA, on a stand-in for `cupy.cuda` with CuPy's names alone.

No device is used; layers 4 and 5 show the effect of the calls.
"""

from __future__ import annotations

import ctypes
import gc
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

pytest.importorskip("cupy", reason="these tests need CuPy: pip install 'ncclkv[cuda12]'")

import cupy
import numpy as np

from ncclkv.comm.nccl.streams import CupyEvent, CupyStreams
from ncclkv.errors import CommAborted, OutOfMemory, UsageError
from ncclkv.kernels.device import launch as kernels_launch
from ncclkv.kernels.device.kernels import DeviceKernels
from ncclkv.kernels.device.memory import empty, zeros
from ncclkv.kernels.device.sources import UPDATE
from tests.nccl.fake_cuda import cuda

__all__ = ["cuda"]

OUT_OF_MEMORY = cupy.cuda.memory.OutOfMemoryError


def cuda_error(code: int = 700) -> Exception:
    return cupy.cuda.runtime.CUDARuntimeError(code)


def test_the_stream_is_of_the_device_non_blocking_and_urgent(cuda):
    streams = CupyStreams(3)
    cuda.Device.assert_called_with(3)
    cuda.Device.return_value.use.assert_called_once_with()
    (call,) = cuda.Stream.call_args_list
    assert call.kwargs["non_blocking"] is True
    assert call.kwargs["priority"] < 0
    assert streams.communication == 1000


def test_the_current_stream_is_that_of_the_device(cuda):
    cuda.get_current_stream.return_value.ptr = 55
    assert CupyStreams(2).current() == 55
    cuda.get_current_stream.assert_called_once_with(2)


@pytest.mark.parametrize(("default", "wanted"), [(1, 0), (2, 2)], ids=["legacy", "per thread"])
def test_the_address_0_is_the_stream_that_cupy_uses_for_it(cuda, monkeypatch, default, wanted):
    monkeypatch.setattr("cupy_backends.cuda.stream.get_default_stream_ptr", lambda: default)
    cuda.get_current_stream.return_value.ptr = 0
    assert CupyStreams(2).current() == wanted
    cuda.get_current_stream.return_value.ptr = 55
    assert CupyStreams(2).current() == 55


def test_events_are_recorded_and_waited_for_by_address(cuda):
    streams = CupyStreams(0)
    event = streams.record(1000)
    cuda.Event.assert_called_once_with(disable_timing=True)
    cuda.runtime.eventRecord.assert_called_once_with(77, 1000)
    streams.wait(55, event)
    cuda.runtime.streamWaitEvent.assert_called_once_with(55, 77)
    assert event.done() is True
    cuda.runtime.eventQuery.assert_called_once_with(77)


def test_timed_events_are_others_and_give_seconds(cuda):
    made = iter(range(77, 99))
    cuda.Event.side_effect = lambda **_: SimpleNamespace(ptr=next(made))
    streams = CupyStreams(0)
    first, second = streams.record_timed(1000), streams.record_timed(1000)
    assert [call.kwargs for call in cuda.Event.call_args_list] == [{}, {}]
    cuda.runtime.eventElapsedTime.return_value = 2.5
    assert streams.seconds(first, second) == 0.0025
    cuda.runtime.eventElapsedTime.assert_called_once_with(77, 78)
    del first
    streams.record(1000)
    assert cuda.Event.call_args.kwargs == {"disable_timing": True}
    streams.record_timed(1000)
    assert cuda.Event.call_count == 3


def test_an_event_without_a_user_is_recorded_anew(cuda):
    made = iter(range(100, 200))
    cuda.Event.side_effect = lambda **_: SimpleNamespace(ptr=next(made))
    streams = CupyStreams(0)
    first, second = streams.record(1000), streams.record(1000)
    assert (first.ptr, second.ptr) == (100, 101)
    del first
    assert streams.record(55).ptr == 100  # which nobody keeps
    third = streams.record(1000)
    assert third.ptr == 100
    assert streams.record(1000).ptr == 102
    assert cuda.Event.call_count == 3


class Destroyed:
    """An event of CuPy, which destroys CUDA's event at its end."""

    def __init__(self, ptr: int, destroyed: list[int]) -> None:
        self.ptr = ptr
        self._destroyed = destroyed

    def __del__(self) -> None:
        self._destroyed.append(self.ptr)


def test_an_event_of_a_garbage_cycle_is_not_destroyed_before_it_is_recorded_anew(cuda):
    made, destroyed = iter(range(100, 200)), []
    cuda.Event.side_effect = lambda **_: Destroyed(next(made), destroyed)
    streams = CupyStreams(0)
    cycle: list[Any] = [streams.record(1000)]
    cycle.append(cycle)  # as the frames of a traceback, if the exception is kept
    del cycle
    gc.collect()
    assert streams.record(1000).ptr == 100
    assert not destroyed


def test_streams_of_others_are_made_current_too(cuda):
    streams = CupyStreams(0)
    with streams.on(streams.communication):
        cuda.Stream.return_value.__enter__.assert_called_once_with()
    cuda.Stream.return_value.__exit__.assert_called_once()
    with streams.on(55):
        (foreign,) = cuda.Stream.from_external.call_args.args
        assert foreign.__cuda_stream__() == (0, 55)
        cuda.Stream.from_external.return_value.__enter__.assert_called_once_with()


def test_another_current_device_is_refused_in_words(cuda):
    streams = CupyStreams(2)
    cuda.runtime.getDevice.return_value = 2
    streams.check_device()
    cuda.runtime.getDevice.return_value = 1
    with pytest.raises(UsageError, match="device 1 is current, and this store is on device 2"):
        streams.check_device()


def test_an_error_of_an_earlier_call_is_reported_as_such(cuda):
    streams = CupyStreams(2)
    cuda.runtime.getDevice.side_effect = cuda_error(700)
    with pytest.raises(CommAborted, match="CUDA reports at the query of the current device"):
        streams.check_device()


def test_an_earlier_error_is_converted_where_a_thread_pushes(cuda):
    streams = CupyStreams(2)
    cuda.runtime.getDevice.return_value = 0
    cuda.driver.ctxGetCurrent = lambda: 1
    cuda.runtime.setDevice.side_effect = cuda_error(700)
    with pytest.raises(CommAborted, match="CUDA reports at making the device current: cudaErrorIl"):
        streams.use_device()


def test_a_thread_that_only_polls_uses_the_device_and_minds_no_capture(cuda, monkeypatch):
    modes: list[int] = []

    def exchange(mode: Any) -> int:
        modes.append(ctypes.cast(mode, ctypes.POINTER(ctypes.c_int)).contents.value)
        return 0

    library = SimpleNamespace(cuThreadExchangeStreamCaptureMode=exchange)
    monkeypatch.setattr(ctypes, "CDLL", {"libcuda.so.1": library}.__getitem__)
    streams = CupyStreams(3)
    cuda.Device.reset_mock()
    streams.attach()
    cuda.Device.assert_called_once_with(3)
    cuda.Device.return_value.use.assert_called_once_with()
    assert modes == [2]  # CU_STREAM_CAPTURE_MODE_RELAXED


def test_an_earlier_error_of_the_device_is_converted_in_a_polling_thread(cuda):
    streams = CupyStreams(3)
    cuda.Device.return_value.use.side_effect = cuda_error()
    with pytest.raises(CommAborted, match="CUDA reports at making the device current: cudaErrorIl"):
        streams.attach()


def test_another_has_a_stream_of_its_own_on_the_same_device(cuda):
    CupyStreams(3).another()
    assert cuda.Stream.call_count == 2
    assert {call.args for call in cuda.Device.call_args_list} == {(3,)}


def test_errors_of_cuda_are_ours(cuda):
    streams = CupyStreams(0)
    cuda.runtime.eventRecord.side_effect = cuda_error()
    with pytest.raises(
        CommAborted, match="CUDA reports at the record of an event: cudaErrorIllegalAddress"
    ):
        streams.record(1000)
    cuda.runtime.streamWaitEvent.side_effect = cuda_error()
    event = SimpleNamespace(ptr=1)
    with pytest.raises(CommAborted, match="a stream's wait for an event.*start the job again"):
        streams.wait(55, CupyEvent(event, cuda.runtime, []))
    cuda.Stream.side_effect = cuda_error()
    with pytest.raises(CommAborted, match="a stream on device 1"):
        CupyStreams(1)


def test_a_capture_is_of_this_thread_and_on_a_stream_of_its_own(cuda):
    streams = CupyStreams(3)
    cuda.Device.reset_mock()
    stream = cuda.Stream.return_value
    assert streams.begin_capture() == 1000
    cuda.Device.assert_called_once_with(3)
    assert cuda.Stream.call_args.kwargs == {"non_blocking": True}
    stream.begin_capture.assert_called_once_with(1)  # cudaStreamCaptureModeThreadLocal
    graph = streams.end_capture()
    stream.end_capture.assert_called_once_with()
    graph.launch(55)
    made = stream.end_capture.return_value
    cuda.runtime.graphLaunch.assert_called_once_with(made.graphExec, 55)
    streams.begin_capture()
    assert cuda.Stream.call_count == 2, "one stream serves every capture"


def test_a_capture_that_is_dropped_is_ended(cuda):
    streams = CupyStreams(0)
    streams.begin_capture()
    stream = cuda.Stream.return_value
    stream.end_capture.side_effect = cuda_error(904)
    streams.drop_capture()
    stream.end_capture.assert_called_once_with()


@pytest.mark.parametrize("code", [900, 901, 904, 905, 906, 907, 908])
def test_what_cuda_refuses_in_a_capture_does_not_cost_the_device(cuda, code):
    streams, error = CupyStreams(0), cuda_error(code)
    words = f"CUDA refuses this in a capture: {error}; make the same step once before it"
    stream = cuda.Stream.return_value
    stream.end_capture.side_effect = cuda.runtime.eventRecord.side_effect = error
    streams.begin_capture()
    with pytest.raises(UsageError) as caught:
        streams.end_capture()
    assert str(caught.value).startswith(f"the end of a capture: {words}")
    with pytest.raises(UsageError, match="the record of an event: CUDA refuses this in a capture"):
        streams.record(1000)
    assert streams.broke_capture(error).startswith(words)


def test_what_leaves_a_call_is_reported_as_the_store_s_error(cuda):
    streams = CupyStreams(0)
    lost = streams.reported(cuda_error(700), "push")
    assert isinstance(lost, CommAborted)
    assert str(lost).startswith(f"CUDA reports at push: {cuda_error(700)}; the device is lost")
    refused = streams.reported(cuda_error(1), "pull")
    assert isinstance(refused, CommAborted)
    assert "CUDA refuses a call at pull: cudaErrorInvalidValue" in str(refused)
    assert "lost" not in str(refused)
    assert isinstance(streams.reported(cuda_error(900), "push"), UsageError)
    assert streams.reported(ValueError(700), "push") is None


def test_other_errors_are_not_a_capture_s(cuda):
    streams = CupyStreams(0)
    for error in (cuda_error(), cuda_error(909), ValueError(900), KeyboardInterrupt()):
        assert streams.broke_capture(error) == ""
    cuda.Stream.return_value.begin_capture.side_effect = cuda_error()
    with pytest.raises(CommAborted, match="CUDA reports at the begin of a capture"):
        streams.begin_capture()
    cuda.Stream.return_value.begin_capture.side_effect = None
    streams.begin_capture()
    graph = streams.end_capture()
    cuda.runtime.graphLaunch.side_effect = cuda_error()
    with pytest.raises(CommAborted, match="CUDA reports at the launch of a graph"):
        graph.launch(1)


def test_a_kernel_is_not_loaded_in_a_capture(cuda, monkeypatch):
    stream = cuda.get_current_stream.return_value
    stream.is_capturing.return_value = True
    words = "kernel sgd of float32 is not loaded, and a .* load it; make the same step once before"
    with pytest.raises(UsageError, match=words):
        kernels_launch.load(UPDATE["sgd", 0, "float32"])
    cuda.Module.assert_not_called()
    # A kernel loaded before is launched in a capture, too.
    cuda.runtime.getDevice.return_value = 0
    known = mock.MagicMock()
    monkeypatch.setitem(kernels_launch._functions, (0, UPDATE["sgd", 0, "float32"]), known)
    assert kernels_launch.load(UPDATE["sgd", 0, "float32"]) is known


@pytest.mark.parametrize(("code", "done"), [(0, True), (600, False)])
def test_an_event_is_done_or_not_ready(cuda, code, done):
    cuda.runtime.eventQuery.return_value = code
    assert CupyStreams(0).record(1000).done() is done


@pytest.mark.parametrize("code", [35, 700, 719])
def test_any_other_code_of_an_event_is_an_error_of_the_device(cuda, code):
    cuda.runtime.eventQuery.return_value = code
    event = CupyStreams(0).record(1000)
    with pytest.raises(CommAborted) as caught:
        event.done()
    text = str(caught.value)
    assert text.startswith(f"CUDA reports at the query of an event: {cuda_error(code)}")
    assert "the device is lost to this process" in text


@pytest.mark.skipif(cupy.cuda.is_available(), reason="there is a GPU here, which CUDA would ask")
def test_cupys_own_event_takes_an_error_for_work_in_progress_and_ours_does_not():
    theirs = cupy.cuda.Event.__new__(cupy.cuda.Event)
    theirs.ptr = 1234
    try:
        assert theirs.done is False, "CuPy looks at the code now"
        with pytest.raises(CommAborted, match="the query of an event: cudaError"):
            CupyEvent(theirs, cupy.cuda.runtime, []).done()
    finally:
        theirs.ptr = 0  # so that nothing is destroyed


def test_a_full_device_raises_an_error_with_its_free_memory(cuda, monkeypatch):
    def zeros(count: int, dtype: str) -> None:
        raise cupy.cuda.memory.OutOfMemoryError(count, 700)

    cuda.memory = SimpleNamespace(OutOfMemoryError=OUT_OF_MEMORY)
    cuda.runtime.memGetInfo.return_value = (500, 80_000)
    cuda.runtime.getDevice.return_value = 2
    pool = SimpleNamespace(total_bytes=lambda: 700, used_bytes=lambda: 600)
    monkeypatch.setattr(cupy, "get_default_memory_pool", lambda: pool)
    monkeypatch.setattr(cupy, "zeros", zeros)
    with pytest.raises(OutOfMemory) as caught:
        CupyStreams(2).allocate(4096)
    assert str(caught.value) == (
        "device 2 has no memory for 4,096 bytes: 500 of its 80,000 bytes are free, and this "
        "process holds 700 through CuPy, 600 of them in arrays (Out of memory allocating 4,096 "
        "bytes (allocated so far: 700 bytes).); keep less there, or use more GPUs"
    )


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda: zeros(1024, np.dtype(np.float32)), "4,096 bytes"),
        (lambda: empty((2, 512), np.dtype(np.float32)), r"an array of float32 \(2, 512\)"),
    ],
    ids=["zeros", "empty"],
)
def test_no_memory_for_an_array_is_ours(cuda, monkeypatch, make, what):
    def refuse(*_: object) -> None:
        raise OUT_OF_MEMORY(4096, 700)

    cuda.memory = SimpleNamespace(OutOfMemoryError=OUT_OF_MEMORY)
    cuda.runtime.memGetInfo.return_value = (500, 80_000)
    pool = SimpleNamespace(total_bytes=lambda: 700, used_bytes=lambda: 600)
    monkeypatch.setattr(cupy, "get_default_memory_pool", lambda: pool)
    monkeypatch.setattr(cupy, "zeros", refuse)
    monkeypatch.setattr(cupy, "empty", refuse)
    with pytest.raises(OutOfMemory, match=f"has no memory for {what}: 500 of its 80,000 bytes"):
        make()


class Pool:
    """CuPy's pool, with 600 bytes in arrays and 100 bytes free."""

    def __init__(self, limit: int = 0) -> None:
        self.get_limit = lambda: limit
        self.free_bytes = lambda: 100
        self.total_bytes = lambda: 700

    def malloc(self, nbytes: int) -> None:
        raise NotImplementedError


@pytest.mark.parametrize(("limit", "left"), [(0, 600), (10_000, 600), (900, 300), (700, 100)])
def test_free_memory_is_that_of_the_device_and_of_the_pool(cuda, monkeypatch, limit, left):
    pool = Pool(limit)
    cuda.get_allocator.return_value = pool.malloc
    cuda.runtime.memGetInfo.return_value = (500, 80_000)
    monkeypatch.setattr(cupy, "get_default_memory_pool", lambda: pool)
    assert DeviceKernels().left() == left


def test_free_memory_of_another_allocator_is_unknown(cuda, monkeypatch):
    cuda.get_allocator.return_value = Pool().malloc
    monkeypatch.setattr(cupy, "get_default_memory_pool", Pool)
    assert DeviceKernels().left() is None
    cuda.runtime.memGetInfo.assert_not_called()


def test_cupy_takes_memory_from_its_own_pool():
    assert cupy.cuda.get_allocator() == cupy.get_default_memory_pool().malloc


def test_close_twice(cuda):
    streams = CupyStreams(0)
    streams.close()
    streams.close()
