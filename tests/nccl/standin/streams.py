"""Streams and events of the stand-in, and copies between it and the host."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ncclkv.errors import OutOfMemory
from tests.nccl.standin.capture import CapturedEvent, RecordedGraph
from tests.nccl.standin.device import Device, Function
from tests.nccl.standin.errors import RefusedByStandIn
from tests.nccl.standin.memory import POISON
from tests.nccl.standin.order import HOST, Clock, Span


class RecordingEvent:
    """A point in a stream, done when the device has reached it."""

    def __init__(self, device: Device, name: str, clock: Clock) -> None:
        self.what = name
        self._device = device
        self.clock = clock
        self.reached = False
        self.time = 0.0
        self._looks = 0

    def run(self, needed: bool) -> bool:
        self.reached = True
        self.time = time.perf_counter()
        return True

    def done(self) -> bool:
        """Return whether the device has reached the event; in lazy mode never at once."""
        self._device.check()
        self._device.refuse(f"a look at {self.what}")
        self._looks += 1
        self._device.advance(needed=not self._device.lazy or self._looks > 1)
        if self._device.lazy and self._looks == 1:
            return False
        if self.reached:
            self._device.order.join(HOST, self.clock)
        return self.reached


class Hold:
    """Work that blocks its stream until an event is reached."""

    def __init__(self, event: RecordingEvent) -> None:
        self.what = f"the wait for {event.what}"
        self.event = event

    def run(self, needed: bool) -> bool:
        return self.event.reached


class RecordingStreams:
    """The streams of a device, for one communicator.

    Attributes
    ----------
    device : Device
        Device that `another` shares.
    """

    def __init__(self, device: Device, name: str = "the communication stream") -> None:
        self.device = device
        self.communication = device.stream(name)
        self._captured: int | None = None
        self._closed = False

    def current(self) -> int:
        return self.device.current

    def check_device(self) -> None:
        """Do nothing: there is one device."""

    def use_device(self) -> None:
        """Do nothing: there is one device."""

    def attach(self) -> None:
        """Let this thread query events, which advances the device."""

    @contextmanager
    def on(self, stream: int) -> Iterator[None]:
        self.device.name(stream)
        before, self.device.current = self.device.current, stream
        try:
            yield
        finally:
            self.device.current = before

    def record(self, stream: int) -> RecordingEvent | CapturedEvent:
        device = self.device
        if device.capture is not None and device.capture.takes(stream):
            captured = device.capture.record(stream, device.log.event())
            device.log.add(f"record {captured.what} on {device.name(stream)}")
            return captured
        # An event follows all that the host has waited for, like all work it queues.
        device.order.access(stream, (), "record")
        event = RecordingEvent(device, device.log.event(), device.order.clock(stream))
        device.log.add(f"record {event.what} on {device.name(stream)}")
        device.enqueue(stream, event)
        return event

    def record_timed(self, stream: int) -> RecordingEvent:
        event = self.record(stream)
        assert isinstance(event, RecordingEvent), "no times are taken in a capture"
        return event

    def seconds(self, first: RecordingEvent, second: RecordingEvent) -> float:
        assert first.reached
        assert second.reached
        return second.time - first.time

    def wait(self, stream: int, event: RecordingEvent | CapturedEvent) -> None:
        device = self.device
        device.log.add(f"let {device.name(stream)} wait for {event.what}")
        inside = device.capture is not None and device.capture.takes(stream)
        if inside or isinstance(event, CapturedEvent):
            if device.capture is None:
                raise RefusedByStandIn(
                    f"{device.name(stream)} cannot wait for {event.what}: its capture is over"
                )
            device.capture.wait(stream, event)
            return
        device.order.join(stream, event.clock)
        device.enqueue(stream, Hold(event))

    def allocate(self, nbytes: int) -> Any:
        device = self.device
        device.check()
        device.refuse(f"an allocation of {nbytes} bytes")
        left = device.left()
        if left is not None and nbytes > left:
            raise OutOfMemory(f"device 0 has no memory for {nbytes:,} bytes")
        array = device.memory.allocate(nbytes, device.current, self)
        device.log.add(f"allocate {nbytes} bytes")
        allocation = device.memory.find(array.data.ptr, nbytes, "allocate")[0]
        memory = allocation.bytes(0, nbytes)
        zeroing = Function("zeroing", lambda: memory.fill(0))
        device.enqueue(device.current, zeroing, [Span(allocation, 0, nbytes, True)])
        return array

    def begin_capture(self) -> int:
        if self._captured is None:
            self._captured = self.device.stream("the captured stream")
        self.device.begin_capture(self._captured)
        return self._captured

    def end_capture(self) -> RecordedGraph:
        return self.device.end_capture()

    def drop_capture(self) -> None:
        self.device.drop_capture()

    def reported(self, error: BaseException, call: str) -> None:
        return None  # errors of the stand-in break the store by themselves

    def broke_capture(self, error: BaseException) -> str:
        """Raise the error: a call refused in a capture ends the test."""
        return ""

    def another(self) -> RecordingStreams:
        return RecordingStreams(self.device, "another communication stream")

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self.device.end_stream(self.communication)

    # Methods for tests

    def work(
        self,
        what: str,
        reads: Sequence[Any],
        writes: Sequence[Any],
        run: Callable[..., object],
    ) -> None:
        """Log ``run(*reads, *writes)``, and queue it on the current stream.

        The function receives NumPy's views of device arrays. Arrays of the host among `reads` are
        copied at the call, and those among `writes` are poisoned.
        """
        device = self.device
        spans, views = [], []
        names: dict[bool, list[str]] = {False: [], True: []}
        for array, to_write in [(a, False) for a in reads] + [(a, True) for a in writes]:
            if isinstance(array, np.ndarray):
                views.append(_poisoned(array) if to_write else array.copy())
                names[to_write].append("the host's")
                continue
            allocation, lo, hi, view = device.memory.view(array)
            spans.append(Span(allocation, lo, hi, to_write))
            views.append(view)
            names[to_write].append(f"{allocation.name}+{lo}")
        sides = " -> ".join(", ".join(side) or "the host's" for side in names.values())
        device.log.add(f"{what} {sides} on {device.name(device.current)}")
        device.put(device.current, what, lambda: Function(what, lambda: run(*views)), spans)

    def put(self, values: NDArray[Any]) -> Any:
        """Return a new contiguous device array with `values`."""
        array = self.allocate(values.nbytes).view(values.dtype).reshape(values.shape)
        self.write(array, values)
        return array

    def write(self, array: Any, values: Any) -> None:
        """Copy from the host, in the order of the current stream."""
        values = np.asarray(values, array.dtype)
        self.work("a copy from the host", [values], [array], lambda new, old: np.copyto(old, new))

    def get(self, array: Any) -> NDArray[Any]:
        """Copy to the host, in the order of the current stream, and wait for that stream."""
        out = np.empty(array.shape, array.dtype)
        self.work("a copy to the host", [array], (), lambda view: np.copyto(out, view))
        self.device.drain(self.device.current)
        return out

    def poison(self, array: Any) -> None:
        """Poison an array's elements, in the order of the current stream."""
        self.work("poison", (), [array], _poisoned)

    def peek(self, array: Any) -> NDArray[Any]:
        """Return the content of a device array at this moment, without regard to queued work."""
        values: NDArray[Any] = self.device.memory.view(array)[3].copy()
        return values


def _poisoned(out: NDArray[Any]) -> NDArray[Any]:
    """Return an array of any strides with every byte poisoned."""
    out[...] = np.frombuffer(bytes([POISON]) * out.itemsize, out.dtype)[0]
    return out
