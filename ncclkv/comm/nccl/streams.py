"""Streams, events and memory of one device: what orders collectives among a store's other work."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol, cast

from ncclkv.errors import CommAborted, UsageError

# Lower numbers go first; CUDA takes the highest priority that the device has for any beyond it.
_HIGHEST = -100


class Event(Protocol):
    """A point in the work of a stream."""

    def done(self) -> bool:
        """Whether all that was queued before it is complete; does not block."""


class Streams(Protocol):
    """Streams of one device.  A stream is its address, an int."""

    communication: int
    """The stream made for the collectives of one communicator."""

    def current(self) -> int:
        """The stream on which the caller's own work goes now; it stays until it was asked twice."""

    def check_device(self) -> None:
        """Refuse a caller that has made another device current: its work would go there."""

    def on(self, stream: int) -> AbstractContextManager[Any]:
        """Make `stream` the current one within a ``with`` block."""

    def record(self, stream: int) -> Event:
        """An event after all that is queued on `stream`."""

    def wait(self, stream: int, event: Event) -> None:
        """Hold what is queued on `stream` from now on back until `event` is done."""

    def allocate(self, nbytes: int) -> Any:
        """Zeroed uint8 cupy.ndarray, 256-byte aligned; zeroed before the current stream goes on."""

    def another(self) -> Streams:
        """The same device, with a communication stream for another communicator."""

    def close(self) -> None:
        """Free the communication stream; a second call does nothing."""


class CupyEvent:
    """An event of CuPy's."""

    def __init__(self, event: Any, error: type[Exception]) -> None:
        self.ptr: int = event.ptr
        self._event = event
        self._error = error

    def done(self) -> bool:
        try:
            return bool(self._event.done)
        except self._error as error:
            raise _failed("the query of an event", error) from error


class _Foreign:
    """A stream that CuPy did not make, as CuPy takes it."""

    def __init__(self, stream: int) -> None:
        self._stream = stream

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._stream


class CupyStreams:
    """Streams of CuPy's on one device, which becomes the thread's current one.

    The communication stream has the highest priority, so that collectives, which other ranks wait
    for, do not stand behind this rank's kernels; and it does not wait for the default stream.

    Parameters
    ----------
    device : int
        CuPy's number of the device.
    """

    def __init__(self, device: int) -> None:
        import cupy

        self._cuda: Any = cupy.cuda
        self._zeros = cupy.zeros
        self._error: type[Exception] = self._cuda.runtime.CUDARuntimeError
        self._device = device
        try:
            self._cuda.Device(device).use()
            self._stream = self._cuda.Stream(non_blocking=True, priority=_HIGHEST)
        except self._error as error:
            raise _failed(f"a stream on device {device}", error) from error
        self.communication: int = self._stream.ptr
        # The newest two: their owner may drop one, on which there still is work to wait for.
        self._seen: deque[Any] = deque(maxlen=2)

    def current(self) -> int:
        stream = self._cuda.get_current_stream(self._device)
        if not self._seen or self._seen[-1].ptr != stream.ptr:
            self._seen.append(stream)
        return int(stream.ptr)

    def check_device(self) -> None:
        current = self._cuda.runtime.getDevice()
        if current != self._device:
            raise UsageError(
                f"device {current} is current, and this store is on device {self._device}; call it "
                f"outside of 'with cupy.cuda.Device({current})': arrays of device {current} may be "
                f"passed all the same"
            )

    @contextmanager
    def on(self, stream: int) -> Iterator[None]:
        own = stream == self.communication
        made = self._stream if own else self._cuda.Stream.from_external(_Foreign(stream))
        # CuPy refuses a stream while another device is current.
        with self._cuda.Device(self._device), made:
            yield

    def record(self, stream: int) -> CupyEvent:
        try:
            event = self._cuda.Event(disable_timing=True)
            self._cuda.runtime.eventRecord(event.ptr, stream)
        except self._error as error:
            raise _failed("the record of an event", error) from error
        return CupyEvent(event, self._error)

    def wait(self, stream: int, event: Event) -> None:
        try:
            self._cuda.runtime.streamWaitEvent(stream, cast(CupyEvent, event).ptr)
        except self._error as error:
            raise _failed("a stream's wait for an event", error) from error

    def allocate(self, nbytes: int) -> Any:
        with self._cuda.Device(self._device):
            return self._zeros(nbytes, "uint8")

    def another(self) -> CupyStreams:
        return CupyStreams(self._device)

    def close(self) -> None:
        self._stream = None


def _failed(what: str, error: Exception) -> CommAborted:
    """CUDA's errors stay: whatever this process asks of the device from now on fails as well."""
    return CommAborted(
        f"CUDA reports at {what}: {error}; the device is lost to this process, so start the job "
        f"again (with CUDA_LAUNCH_BLOCKING=1 the failing kernel is the one named)"
    )
