"""Streams, events and memory of one device."""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from functools import partial
from typing import Any, Protocol, cast

from ncclkv.arrays.cupy import ForeignStream, event_is_complete, memory, on_stream
from ncclkv.errors import CommAborted, KVStoreError, UsageError

DRIVER = "libcuda.so.1"
"""Library of CUDA's driver."""

PER_THREAD = 2
"""Address of the default stream of the calling thread, cudaStreamPerThread: a stream each."""

# CU_STREAM_CAPTURE_MODE_RELAXED of cuda.h.
_RELAXED = 2

# A lower value is a higher priority; CUDA limits it to the highest priority of the device.
_HIGHEST = -100

# Codes of driver_types.h for a refused call, after which the device works on: invalid values, lack
# of memory, functions, images, handles, names, too large launches, unsupported calls.
_REFUSALS = {1, 2, 98, 200, 209, 400, 500, 701, 801}

# cudaErrorStreamCaptureUnsupported to cudaErrorStreamCaptureWrongThread.
_OF_CAPTURES = range(900, 909)


class Event(Protocol):
    """Point in the work of a stream."""

    def done(self) -> bool:
        """Return whether all earlier work of the stream is complete; does not block.

        Raises
        ------
        CommAborted
            When the device reports an error: no work on it completes any more.
        """


class StreamGraph(Protocol):
    """Captured work; freed with its last reference, also while it runs."""

    def launch(self, stream: int) -> None:
        """Put the captured work on `stream`, as one piece of work."""


class Streams(Protocol):
    """Streams of one device.  A stream is represented by its address, an int."""

    communication: int
    """Stream of the collectives of one communicator."""

    def current(self) -> int:
        """Return the current stream; it stays alive until two other streams were returned."""

    def check_device(self) -> None:
        """Raise `UsageError` if CUDA's current device is not the device of these streams."""

    def use_device(self) -> Callable[[], None] | None:
        """Make the device current; return a function that makes the thread's own current again.

        Returns None if the device stays the current one: it was, or the thread has used no device.
        """

    def attach(self) -> None:
        """Prepare the calling thread for queries of events during captures of other threads."""

    def on(self, stream: int) -> AbstractContextManager[Any]:
        """Make `stream` current within a ``with`` block."""

    def record(self, stream: int) -> Event:
        """Return an event after the present work of `stream`."""

    def record_timed(self, stream: int) -> Event:
        """Return an event that has a time, too; it takes longer to record."""

    def seconds(self, first: Event, second: Event) -> float:
        """Return the time between two events of `record_timed` that the device has reached."""

    def wait(self, stream: int, event: Event) -> None:
        """Make later work of `stream` wait for `event`."""

    def allocate(self, nbytes: int) -> Any:
        """Allocate a uint8 cupy.ndarray of zeros, 256-byte aligned.

        Later work of the current stream sees the zeros.

        Raises
        ------
        OutOfMemory
            When the device has too little memory.
        """

    def begin_capture(self) -> int:
        """Begin a capture; return its stream, whose work is recorded and not executed.

        Streams that wait for events of this stream are recorded too, and this stream must wait for
        them.  During the capture this thread may not query events, wait, or allocate.
        """

    def end_capture(self) -> StreamGraph:
        """End the capture and return its graph; `UsageError` if a call spoilt the capture."""

    def drop_capture(self) -> None:
        """End a capture, spoilt or not, and drop its graph."""

    def reported(self, error: BaseException, call: str) -> KVStoreError | None:
        """Return the error to raise for an error of CUDA's in a store's `call`; else None."""

    def broke_capture(self, error: BaseException) -> str:
        """Return text for an error by which CUDA refused a call in a capture; else empty."""

    def another(self) -> Streams:
        """Return streams of the same device for another communicator."""

    def close(self) -> None:
        """Free the communication stream; a second call has no effect."""


class CupyEvent:
    """Event of CuPy; its end gives CuPy's object to `free`, whose events are recorded anew.

    To make and destroy an event takes longer than to record it.  A stream that waits for an event
    waits for the work before its latest record, so the next record of the event disturbs no wait.
    """

    def __init__(self, event: Any, runtime: Any, free: list[Any]) -> None:
        self.ptr: int = event.ptr
        self._event = event
        self._runtime = runtime
        self._free = free

    def __del__(self) -> None:
        self._free.append(self._event)

    def done(self) -> bool:
        try:
            return event_is_complete(self.ptr, self._runtime)
        except self._runtime.CUDARuntimeError as error:
            raise _failed("the query of an event", error) from error


class CupyGraph:
    """Graph of CuPy."""

    def __init__(self, graph: Any, runtime: Any) -> None:
        self._graph = graph
        self._runtime = runtime

    def launch(self, stream: int) -> None:
        try:
            self._runtime.graphLaunch(self._graph.graphExec, stream)
        except self._runtime.CUDARuntimeError as error:
            raise _failed("the launch of a graph", error) from error


class CupyStreams:
    """Streams of CuPy on one device, which becomes the thread's current device.

    The communication stream has the highest priority: other ranks wait for the collectives, so they
    must not wait behind this rank's kernels.  The stream does not wait for the default stream.

    Parameters
    ----------
    device : int
        CuPy's index of the device.
    """

    def __init__(self, device: int) -> None:
        import cupy
        from cupy_backends.cuda.stream import get_default_stream_ptr

        self._cuda: Any = cupy.cuda
        self._zeros = cupy.zeros
        self._error: type[Exception] = self._cuda.runtime.CUDARuntimeError
        self._errors = (self._error, self._cuda.driver.CUDADriverError)
        self._device = device
        try:
            self._cuda.Device(device).use()
            self._stream = self._cuda.Stream(non_blocking=True, priority=_HIGHEST)
        except self._error as error:
            raise _failed(f"a stream on device {device}", error) from error
        self.communication: int = self._stream.ptr
        self._captured: Any = None
        self._events: list[Any] = []
        self._timed: list[Any] = []
        # Refers to each event of CuPy: a cycle of garbage, such as a traceback's, would destroy an
        # event although `CupyEvent.__del__` puts it among the free events.
        self._made: list[Any] = []
        # With CUPY_CUDA_PER_THREAD_DEFAULT_STREAM=1 CuPy uses this stream for the address 0.
        self._default = PER_THREAD if get_default_stream_ptr() == PER_THREAD else 0
        # The newest two: their owner may drop a stream before others have waited for its work.
        self._seen: deque[Any] = deque(maxlen=2)

    def current(self) -> int:
        stream = self._cuda.get_current_stream(self._device)
        if not self._seen or self._seen[-1].ptr != stream.ptr:
            self._seen.append(stream)
        return int(stream.ptr) or self._default

    def check_device(self) -> None:
        try:
            current = self._cuda.runtime.getDevice()
        except self._error as error:  # possibly of earlier work
            raise _failed("the query of the current device", error) from error
        if current != self._device:
            raise UsageError(
                f"device {current} is current, and this store is on device {self._device}; call "
                f"the store outside of 'with cupy.cuda.Device({current})'; arrays may be on device "
                f"{current}, too"
            )

    def use_device(self) -> Callable[[], None] | None:
        runtime = self._cuda.runtime
        try:
            own = runtime.getDevice()
            if own == self._device:
                return None
            # A new thread has device 0, and no context there.  To make that device current again
            # would make a context, in a GPU's memory that this process may not use at all.
            has_used = self._cuda.driver.ctxGetCurrent()
            runtime.setDevice(self._device)
        except self._errors as error:  # possibly of earlier work
            raise _failed("making the device current", error) from error
        return partial(runtime.setDevice, own) if has_used else None

    def attach(self) -> None:
        # A new thread has device 0, on which a query would make a context and use memory.
        try:
            self._cuda.Device(self._device).use()
        except self._error as error:  # possibly of earlier work
            raise _failed("making the device current", error) from error
        # Without this mode a query would spoil a global capture of another thread.
        mode = ctypes.c_int(_RELAXED)
        ctypes.CDLL(DRIVER).cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))

    def on(self, stream: int) -> AbstractContextManager[None]:
        is_own = stream == self.communication
        return on_stream(self._device, self._stream if is_own else ForeignStream(stream))

    def record(self, stream: int) -> CupyEvent:
        return self._record(stream, self._events, timed=False)

    def record_timed(self, stream: int) -> CupyEvent:
        return self._record(stream, self._timed, timed=True)

    def _record(self, stream: int, free: list[Any], *, timed: bool) -> CupyEvent:
        try:
            event = free.pop() if free else self._new_event(timed=timed)
            self._cuda.runtime.eventRecord(event.ptr, stream)
        except self._error as error:
            raise _failed("the record of an event", error) from error
        return CupyEvent(event, self._cuda.runtime, free)

    def _new_event(self, *, timed: bool) -> Any:
        event = self._cuda.Event() if timed else self._cuda.Event(disable_timing=True)
        self._made.append(event)
        return event

    def seconds(self, first: Event, second: Event) -> float:
        runtime = self._cuda.runtime
        pointers = cast(CupyEvent, first).ptr, cast(CupyEvent, second).ptr
        try:
            return 1e-3 * float(runtime.eventElapsedTime(*pointers))
        except self._error as error:
            raise _failed("the time between two events", error) from error

    def wait(self, stream: int, event: Event) -> None:
        try:
            self._cuda.runtime.streamWaitEvent(stream, cast(CupyEvent, event).ptr)
        except self._error as error:
            raise _failed("a stream's wait for an event", error) from error

    def allocate(self, nbytes: int) -> Any:
        with self._cuda.Device(self._device), memory(f"{nbytes:,} bytes"):
            return self._zeros(nbytes, "uint8")

    def begin_capture(self) -> int:
        runtime = self._cuda.runtime
        try:
            if self._captured is None:
                with self._cuda.Device(self._device):
                    # Non-blocking: the default stream must not wait for the capture.
                    self._captured = self._cuda.Stream(non_blocking=True)
            self._captured.begin_capture(runtime.streamCaptureModeThreadLocal)
        except self._error as error:
            raise _failed("the begin of a capture", error) from error
        return int(self._captured.ptr)

    def end_capture(self) -> CupyGraph:
        try:
            return CupyGraph(self._captured.end_capture(), self._cuda.runtime)
        except self._error as error:
            raise _failed("the end of a capture", error) from error

    def drop_capture(self) -> None:
        # CUDA raises for an unjoined stream or a spoilt capture, and ends the capture.
        with suppress(self._error):
            self._captured.end_capture()

    def broke_capture(self, error: BaseException) -> str:
        return _describe_capture_error(error) if isinstance(error, self._errors) else ""

    def reported(self, error: BaseException, call: str) -> KVStoreError | None:
        return _failed(call, error) if isinstance(error, self._errors) else None

    def another(self) -> CupyStreams:
        return CupyStreams(self._device)

    def close(self) -> None:
        self._stream = self._captured = None
        self._events = []
        self._timed = []
        self._made = []


def _failed(what: str, error: BaseException) -> KVStoreError:
    """Return the error to raise for an error of CUDA.

    Most errors are permanent: every later call of the process for the device fails too.  An error
    of a capture ends with the capture, and a refused call affects only this call.
    """
    if text := _describe_capture_error(error):
        return UsageError(f"{what}: {text}")
    if getattr(error, "status", None) in _REFUSALS:
        return CommAborted(f"CUDA refuses a call at {what}: {error}; close the store")
    return CommAborted(
        f"CUDA reports at {what}: {error}; the device is lost to this process, so start the job "
        f"again (with CUDA_LAUNCH_BLOCKING=1 the error names the kernel that failed)"
    )


def _describe_capture_error(error: Any) -> str:
    """Return text for an error of a capture; empty for other errors."""
    if getattr(error, "status", None) not in _OF_CAPTURES:
        return ""
    return (
        f"CUDA refuses this in a capture: {error}; make the same step once before it, and in it "
        f"allocate nothing, wait for nothing, and put nothing on another stream"
    )
