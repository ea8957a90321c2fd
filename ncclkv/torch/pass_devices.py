"""Devices: the thread and the stream with which passes of a module call the store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Protocol

import torch

from ncclkv.arrays.cupy import on_torch_stream
from ncclkv.store.deputy import deputized
from ncclkv.store.kvstore import KVStore


class Device(Protocol):
    """The device of a module, and so of its store."""

    def calls(self) -> AbstractContextManager[None]:
        """Return a ``with`` block for calls of the store in the thread that created the store."""

    def hooks(self) -> AbstractContextManager[None]:
        """Return a ``with`` block for calls of the store in the hooks of a backward pass."""


class Host:
    """Host memory: hooks run in the thread that calls ``backward``."""

    def __init__(self) -> None:
        self._block = nullcontext()  # made once, because each gradient enters it

    def calls(self) -> AbstractContextManager[None]:
        return self._block

    def hooks(self) -> AbstractContextManager[None]:
        return self._block


class Gpu:
    """A GPU: hooks run in a thread of autograd's, while the thread that calls ``backward`` waits.

    torch's current stream in a hook is that of the gradient.  In the callback at the end of a pass
    the current stream is that of the caller of ``backward``, after a wait for all gradients
    (``GraphTask::exec_post_processing`` in torch's ``csrc/autograd/engine.cpp``).  The store
    follows CuPy's current stream, so this is made the same: pushes read the gradients after their
    kernels, and the caller's stream waits for the sums.  The host waits for nothing.
    """

    def __init__(self, kv: KVStore, device_id: int) -> None:
        self._kv, self._device_id = kv, device_id

    def calls(self) -> AbstractContextManager[None]:
        return on_torch_stream(self._device_id)

    @contextmanager
    def hooks(self) -> Iterator[None]:
        with deputized(self._kv), self.calls():
            yield


def device_of(kv: KVStore, tensor: torch.Tensor) -> Device:
    """Return the device of a module, of which `tensor` is a parameter."""
    return Host() if tensor.device.type == "cpu" else Gpu(kv, tensor.device.index)
