"""A fake machine of several devices: host memory, and work that waits in streams.

Each device has one stream, the default one. `Machine.run` runs its work as late on one device, and
as early on another, as the events between them allow. Memory without references is overwritten by
the next work of its device, like memory of CuPy's pool. So work that no event orders gives a wrong
result in one of the orders. The machine shows nothing of CUDA.
"""

from __future__ import annotations

import ctypes
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ncclkv.kernels.device.launch import Launch
from ncclkv.kernels.device.sources import KernelSource
from tests.nccl.kernel_cases import POISON

Work = Callable[[], bool | None]
"""Work of a stream; it returns false when it has to wait."""


class Event:
    """An event on a device's stream."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._device = machine.current
        self.reached = False

    def record(self, stream: Stream) -> None:
        assert stream.device == self._device == self._machine.current
        self._machine.do(self._reach)

    def _reach(self) -> None:
        self.reached = True


class Stream:
    """The default stream; its address is 0 on every device."""

    ptr = 0

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.device = machine.current

    def wait_event(self, event: Event) -> None:
        self._machine.do(lambda: event.reached)


class Owner:
    """The owner of an array's memory, alive as long as the array."""


class Machine:
    """Devices 0 to 2; device 0 is current at first.

    Attributes
    ----------
    copies : list of (int, int, int)
        From which device to which went how many bytes.
    """

    def __init__(self, launch: Launch) -> None:
        import cupy

        self._cupy = cupy
        self._memory = cupy.cuda.UnownedMemory, cupy.cuda.MemoryPointer
        self._launch = launch
        self._queues: list[deque[Work]] = [deque() for _ in range(3)]
        self._kept: list[np.ndarray] = []
        self.current = 0
        self.copies: list[tuple[int, int, int]] = []

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Replace the functions of CuPy that the package uses."""
        cupy, cuda = self._cupy, SimpleNamespace()
        cuda.Device = self.on
        cuda.Event = lambda disable_timing: Event(self)
        cuda.get_current_stream = lambda: Stream(self)
        cuda.runtime = SimpleNamespace(memcpyPeerAsync=self._copy)
        monkeypatch.setattr(cupy, "cuda", cuda)
        monkeypatch.setattr(cupy, "empty", self.empty)
        monkeypatch.setattr(cupy, "empty_like", lambda x: self.empty(x.shape, x.dtype))
        monkeypatch.setattr(cupy, "ascontiguousarray", self._contiguous)
        monkeypatch.setattr(cupy, "copyto", self._assign)

    @contextmanager
    def on(self, device: int) -> Iterator[None]:
        """Make a device the current one."""
        before, self.current = self.current, device
        try:
            yield
        finally:
            self.current = before

    def do(self, work: Work) -> None:
        """Queue work on the current device."""
        self._queues[self.current].append(work)

    def run(self, order: Sequence[int]) -> None:
        """Run all queued work; each time the first device of `order` that can goes on."""
        while any(self._queues):
            if not any(self._step(self._queues[device]) for device in order):
                pytest.fail("streams wait for each other for ever")

    def _step(self, queue: deque[Work]) -> bool:
        """Run the first work of a queue, unless the queue is empty or the work has to wait."""
        if not queue or queue[0]() is False:
            return False
        queue.popleft()
        return True

    def launch(self, program: KernelSource, blocks: int, argument: np.ndarray) -> None:
        """Queue a kernel."""
        self.do(lambda: self._launch(program, blocks, argument))

    # Arrays

    def empty(self, shape: Any, dtype: Any) -> Any:
        """Return an array of poison on the current device."""
        memory, pointer = self._memory
        space, owner = np.empty(shape, dtype), Owner()
        self._kept.append(space)
        place, nbytes, queue = space.ctypes.data, space.nbytes, self._queues[self.current]
        ctypes.memset(place, POISON, nbytes)
        weakref.finalize(
            owner, queue.append, lambda: ctypes.memset(place, POISON, nbytes) and None
        ).atexit = False
        held = memory(place, max(nbytes, 1), owner, self.current)
        return self._cupy.ndarray(space.shape, space.dtype, pointer(held, 0))

    def fill(self, array: Any, values: Any) -> None:
        """Queue a write to an array on its device."""
        place = view(array)
        with self.on(array.device.id):
            self.do(lambda: np.copyto(place, values))

    def made(self, values: np.ndarray, device: int) -> Any:
        """Return an array on its device whose content is written later."""
        with self.on(device):
            array = self.empty(values.shape, values.dtype)
        self.fill(array, values)
        return array

    def _copy(
        self, to: int, to_device: int, of: int, of_device: int, nbytes: int, stream: int
    ) -> None:
        assert stream == 0
        self.copies.append((of_device, to_device, nbytes))
        self.do(lambda: ctypes.memmove(to, of, nbytes) and None)

    def _contiguous(self, array: Any) -> Any:
        if array.flags.c_contiguous:
            return array
        copy = self.empty(array.shape, array.dtype)
        self._assign(copy, array)
        return copy

    def _assign(self, destination: Any, source: Any, casting: str = "unsafe") -> None:
        assert destination.device.id == source.device.id == self.current
        old, new = view(destination), view(source)
        self.do(lambda: np.copyto(old, new, casting="unsafe"))


def view(array: Any) -> np.ndarray:
    """Return NumPy's view of an array without negative strides; the view keeps nothing alive."""
    if not array.size:
        return np.empty(array.shape, array.dtype)
    memory = (ctypes.c_char * array.itemsize).from_address(array.data.ptr)
    return np.lib.stride_tricks.as_strided(
        np.frombuffer(memory, array.dtype), array.shape, array.strides, writeable=True
    )
