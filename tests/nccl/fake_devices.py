"""A fake ``cupy.cuda`` of several devices, with the behaviour of CuPy's source.

A stream is entered on its own device alone, and an event is recorded on a stream of its own device.
The end of its ``with`` block makes the stream of the enclosing block current, even if the program
has chosen another with `use`.
A stream without references is destroyed. Page-locked memory without references goes to the next
allocation, even if a copy still reads it. `Devices.step` runs the queued work of a stream.
"""

from __future__ import annotations

import ctypes
import itertools
import weakref
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

POISON = 0xA5
INVALID_HANDLE = 400
"""The code cudaErrorInvalidResourceHandle."""
NOT_READY = 600
"""The code cudaErrorNotReady."""


class Devices:
    """Two devices; device 0 is current at first.

    Attributes
    ----------
    current : int
    has_context : bool
        Whether the thread has used a device.
    allocated : list of (int, int)
        Bytes and device of each allocation.
    destroyed : set of int
        Streams that are gone.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        import cupy

        self._real: Any = cupy.cuda
        self._addresses = itertools.count(1000)
        # The default stream, and those that `with` blocks have entered, of each device.
        self._entered: dict[int, list[Any]] = {n: [ExternalStream(self, n)] for n in (0, 1)}
        self._stream_of = {index: entered[-1] for index, entered in self._entered.items()}
        self._device_of: dict[int, int] = {0: 0}
        self._is_done: dict[int, bool] = {}
        self._work: deque[Callable[[], None]] = deque()
        self.current = 0
        self.has_context = False
        self.allocated: list[tuple[int, int]] = []
        self.destroyed: set[int] = set()
        error = self._real.runtime.CUDARuntimeError
        runtime = SimpleNamespace(
            CUDARuntimeError=error,
            getDevice=lambda: self.current,
            setDevice=self.set,
            eventRecord=self._record,
            # CuPy's function returns CUDA's code, too, and raises nothing.
            eventQuery=lambda event: 0 if self._is_done.get(event, True) else NOT_READY,
            streamWaitEvent=lambda stream, event: self._check(stream),
            streamCaptureModeThreadLocal=1,
        )
        driver = SimpleNamespace(
            CUDADriverError=self._real.driver.CUDADriverError,
            ctxGetCurrent=lambda: int(self.has_context),
        )
        cuda = SimpleNamespace(
            runtime=runtime,
            driver=driver,
            Device=lambda index: Device(self, index),
            Stream=type("Stream", (Stream,), {"devices": self}),
            Event=lambda disable_timing=False: Event(self),
            get_current_stream=self.stream_of,
            alloc_pinned_memory=self._pinned,
        )
        monkeypatch.setattr(cupy, "cuda", cuda)
        monkeypatch.setattr(cupy, "zeros", self._zeros)
        self.Stream = cuda.Stream

    def set(self, index: int) -> None:
        """Make a device current, which makes a context there for the thread."""
        self.current, self.has_context = index, True

    def use(self, stream: Any) -> None:
        """Make a stream the current one of its device."""
        self._stream_of[stream.device_id] = stream

    def stream_of(self, index: int = -1) -> Any:
        """Return the current stream of a device."""
        return self._stream_of[self.current if index == -1 else index]

    def enter(self, stream: Any) -> None:
        """Begin the ``with`` block of a stream."""
        self.check_current(stream)
        self._entered[self.current].append(stream)
        self.use(stream)

    def leave(self, stream: Any) -> None:
        """End the ``with`` block of a stream."""
        entered = self._entered[stream.device_id]
        assert entered.pop() is stream
        self.use(entered[-1])

    def check_current(self, stream: Any) -> None:
        """Raise CuPy's error unless the device of a stream is current."""
        if stream.device_id != self.current:
            raise RuntimeError(
                f"The device that the stream is created on ({stream.device_id}) does not match "
                f"with the current device ({self.current})"
            )

    def made(self) -> int:
        """Return the address of a new stream or event on the current device."""
        address = next(self._addresses)
        self._device_of[address] = self.current
        return address

    def device_of(self, address: int) -> int:
        return self._device_of[address]

    def do(self, work: Callable[[], None]) -> None:
        """Queue work on a stream."""
        self._work.append(work)

    def step(self, count: int | None = None) -> None:
        """Run some of the queued work, or all of it."""
        for _ in range(len(self._work) if count is None else count):
            self._work.popleft()()

    def record(self, event: int) -> None:
        """Queue an event, which completes after the work before it."""
        self._is_done[event] = False
        self.do(lambda: self._is_done.update({event: True}))

    def _check(self, stream: int) -> None:
        if stream in self.destroyed:
            raise self._real.runtime.CUDARuntimeError(INVALID_HANDLE)

    def _record(self, event: int, stream: int) -> None:
        self._check(stream)
        if stream and self._device_of[stream] != self._device_of[event]:
            raise self._real.runtime.CUDARuntimeError(INVALID_HANDLE)

    def _zeros(self, nbytes: int, dtype: str) -> Any:
        self.allocated.append((nbytes, self.current))
        return np.zeros(nbytes, dtype)

    def _pinned(self, nbytes: int) -> Any:
        """Return page-locked memory that the next allocation overwrites once it is unreferenced."""
        space = np.empty(nbytes, np.uint8)
        kind = type("Pinned", (ctypes.c_char * nbytes,), {})
        memory = kind.from_address(space.ctypes.data)
        weakref.finalize(memory, space.fill, POISON).atexit = False
        return memory


class Device:
    """``cupy.cuda.Device``."""

    def __init__(self, devices: Devices, index: int) -> None:
        self._devices = devices
        self._index = index
        self._before: list[int] = []

    def use(self) -> None:
        self._devices.current = self._index

    def __enter__(self) -> Device:
        self._before.append(self._devices.current)
        self.use()
        return self

    def __exit__(self, *_: object) -> None:
        self._devices.current = self._before.pop()


class BaseStream:
    """Methods of all streams of CuPy."""

    devices: Devices
    device_id: int

    def use(self) -> BaseStream:
        self.devices.check_current(self)
        self.devices.use(self)
        return self

    def __enter__(self) -> BaseStream:
        self.devices.enter(self)
        return self

    def __exit__(self, *_: object) -> None:
        self.devices.leave(self)


class ExternalStream(BaseStream):
    """``cupy.cuda.Stream.from_external(...)``, or the default stream of a device."""

    def __init__(self, devices: Devices, index: int, ptr: int = 0) -> None:
        self.devices, self.device_id, self.ptr = devices, index, ptr


class Stream(BaseStream):
    """``cupy.cuda.Stream``; destroyed with the last reference."""

    def __init__(self, non_blocking: bool = False, priority: int = 0) -> None:
        self.ptr = self.devices.made()
        self.device_id = self.devices.current
        weakref.finalize(self, self.devices.destroyed.add, self.ptr).atexit = False

    @classmethod
    def from_external(cls, stream: Any) -> ExternalStream:
        """Return a stream of another library; CuPy assigns it to the current device."""
        version, ptr = stream.__cuda_stream__()
        assert version == 0
        return ExternalStream(cls.devices, cls.devices.current, ptr)

    def begin_capture(self, mode: int) -> None:
        assert self.ptr not in self.devices.destroyed


class Event:
    """``cupy.cuda.Event``."""

    def __init__(self, devices: Devices) -> None:
        self._devices = devices
        self.ptr = devices.made()

    def record(self) -> None:
        self._devices.record(self.ptr)


class Slot:
    """A flat array of a device that queued work fills."""

    def __init__(self, devices: Devices, size: int) -> None:
        self.values = np.zeros(size, np.float32)
        self.dtype, self.nbytes = self.values.dtype, self.values.nbytes
        self._devices = devices
        self.data = SimpleNamespace(copy_from_host_async=self._copy)

    def _copy(self, address: int, nbytes: int) -> None:
        place = self.values.ctypes.data
        self._devices.do(lambda: ctypes.memmove(place, address, nbytes) and None)
