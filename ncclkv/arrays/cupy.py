"""CuPy arrays, and CuPy views of other libraries' arrays in a GPU's memory.

The arrays may be on any GPU that the process sees.

CuPy's own ``with`` block of a stream would take away a stream that the program chose with ``use``,
so `on_stream` gives that stream back.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from numpy.typing import NDArray

from ncclkv.arrays import device, dlpack, torch
from ncclkv.errors import NotSupported, OutOfMemory, UsageError

_DONE, _NOT_READY = 0, 600
"""cudaSuccess and cudaErrorNotReady."""


class ForeignStream:
    """A stream of another library, in a form that CuPy accepts.

    Streams of torch before 2.10 do not offer ``__cuda_stream__``.
    """

    def __init__(self, stream: int) -> None:
        self._stream = stream

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._stream


def recognises(x: Any) -> bool:
    """Return whether `x` is in a GPU's memory, by its type or ``__cuda_array_interface__``."""
    if torch.recognises(x):
        return bool(x.device.type == "cuda")
    return isinstance(x, _cupy().ndarray) or hasattr(x, "__cuda_array_interface__")


def is_own(x: Any) -> bool:
    """Return whether `x` is a CuPy array, for which no view is made."""
    return isinstance(x, getattr(sys.modules.get("cupy"), "ndarray", ()))


def view(x: Any, what: str, *, write: bool) -> NDArray[Any]:
    """View `x`; to write, refuse read-only memory, to which CuPy would write."""
    if torch.recognises(x):
        return _tensor(torch.detached(x, what, write=write), what)
    if write and not is_own(x):
        dlpack.refuse_jax(x, what)
        if x.__cuda_array_interface__["data"][1]:
            raise UsageError(
                f"{what}: out is read-only, by the __cuda_array_interface__ of "
                f"{device.describe(x)}; pass a CuPy array"
            )
    array: NDArray[Any] = x if is_own(x) else _cupy().asarray(x)
    return array


@contextmanager
def on_stream(device_id: int, stream: Any) -> Iterator[None]:
    """Make a device and a stream of it current, for this thread in a ``with`` block.

    Parameters
    ----------
    device_id : int
    stream : cupy.cuda.Stream or ForeignStream
    """
    cuda = _cupy().cuda
    device = cuda.Device(device_id)
    # CuPy refuses a stream while another device is current.
    with device:
        before = cuda.get_current_stream(device_id)
        if isinstance(stream, ForeignStream):
            stream = cuda.Stream.from_external(stream)
        try:
            with stream:
                yield
        finally:
            # CuPy has made the stream of the enclosing `with` block current.  A stream that the
            # program chose with `use` would be lost, and with it the order of its kernels.
            if cuda.get_current_stream(device_id) is not before:
                device.use()
                before.use()


def on_torch_stream(device_id: int) -> AbstractContextManager[None]:
    """Make torch's current stream of a device CuPy's, for this thread in a ``with`` block."""
    # torch keeps its streams to the end of the process.
    return on_stream(device_id, ForeignStream(_torch_stream(device_id)))


@contextmanager
def memory(what: str) -> Iterator[None]:
    """Raise `OutOfMemory` if CuPy cannot allocate memory for `what` on the current device."""
    cuda = _cupy().cuda
    try:
        yield
    except cuda.memory.OutOfMemoryError as error:
        free, whole = cuda.runtime.memGetInfo()
        pool = _cupy().get_default_memory_pool()
        raise OutOfMemory(
            f"device {cuda.runtime.getDevice()} has no memory for {what}: {free:,} of its "
            f"{whole:,} bytes are free, and this process holds {pool.total_bytes():,} through "
            f"CuPy, {pool.used_bytes():,} of them in arrays ({error}); keep less there, or use "
            f"more GPUs"
        ) from error


def event_is_complete(event: int, runtime: Any) -> bool:
    """Return whether all work before an event is complete; does not block.

    CuPy's ``Event.done`` is not used: an error of the device looks there like an incomplete event.

    Parameters
    ----------
    event : int
        The event's address.
    runtime : module
        ``cupy.cuda.runtime``.

    Raises
    ------
    CUDARuntimeError
        When the device reports an error: nothing on it completes any more.
    """
    code = runtime.eventQuery(event)
    if code not in (_DONE, _NOT_READY):
        raise runtime.CUDARuntimeError(code)
    return bool(code == _DONE)


def left() -> int | None:
    """Return the bytes that new arrays on the current device may still take.

    CuPy's own pool frees its cached blocks of other sizes before it raises.  With another allocator
    the count is unknown, and None is returned.
    """
    pool, cuda = _cupy().get_default_memory_pool(), _cupy().cuda
    if cuda.get_allocator() != pool.malloc:
        return None
    free, _ = cuda.runtime.memGetInfo()
    limit = pool.get_limit()  # 0: no limit
    new: int = min(free, limit - pool.total_bytes()) if limit else free
    kept: int = pool.free_bytes()
    return new + kept


def _tensor(x: Any, what: str) -> NDArray[Any]:
    """View a torch tensor; refuse it if torch's and CuPy's current streams there differ."""
    device_id = x.device.index
    stream = _torch_stream(device_id)
    if _cupy().cuda.get_current_stream(device_id).ptr != stream:
        raise UsageError(
            f"{what}: torch's current stream of device {device_id} is not CuPy's, on which the "
            f"store would use this tensor; call it inside: with cupy.cuda.Stream.from_external("
            f"torch.cuda.current_stream({device_id}))"
        )
    try:
        array: NDArray[Any] = _cupy().from_dlpack(x)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise NotSupported(
            f"{what}: CuPy cannot view this tensor of {x.dtype} through DLPack ({error}); pass it "
            f"as a CuPy array"
        ) from error
    return array


def _torch_stream(device_id: int) -> int:
    """Return the address of torch's current stream of a device."""
    stream: int = sys.modules["torch"].cuda.current_stream(device_id).cuda_stream
    return stream


def _cupy() -> Any:
    """Return the module CuPy, which a store in a GPU's memory has imported."""
    return sys.modules["cupy"]
