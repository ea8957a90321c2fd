"""CuPy arrays, and the arrays of other libraries in a GPU's memory as CuPy views of it."""

from __future__ import annotations

import sys
from typing import Any

from numpy.typing import NDArray

from ncclkv.arrays import torch
from ncclkv.errors import NotSupported, UsageError


def recognises(x: Any) -> bool:
    """Tell whether `x` lies in the memory of a GPU, as far as its library says so."""
    if torch.recognises(x):
        return bool(x.device.type == "cuda")
    return isinstance(x, _cupy().ndarray) or hasattr(x, "__cuda_array_interface__")


def value(x: Any, what: str) -> NDArray[Any]:
    """View `x` to read from."""
    if torch.recognises(x):
        return _tensor(x.detach().resolve_conj().resolve_neg(), what)
    return _view(x)


def out(x: Any, what: str) -> NDArray[Any]:
    """View `x` to write into."""
    if torch.recognises(x):
        torch.check_eager(x, what)
        return _tensor(x.detach(), what)
    return _view(x)


def _view(x: Any) -> NDArray[Any]:
    """View any library's array but torch's."""
    array: NDArray[Any] = x if isinstance(x, _cupy().ndarray) else _cupy().asarray(x)
    return array


def _tensor(x: Any, what: str) -> NDArray[Any]:
    """View a torch tensor; the store's work on it is queued on CuPy's current stream."""
    streams = _cupy().cuda.get_current_stream().ptr, _torch_stream()
    if streams[0] != streams[1]:
        raise UsageError(
            f"{what}: torch's current stream is not CuPy's, on which the store would use this "
            f"tensor; call it inside: with cupy.cuda.ExternalStream("
            f"torch.cuda.current_stream().cuda_stream)"
        )
    try:
        array: NDArray[Any] = _cupy().from_dlpack(x)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise NotSupported(
            f"{what}: CuPy cannot view this tensor of {x.dtype} through DLPack ({error}); pass it "
            f"as a CuPy array"
        ) from error
    return array


def _torch_stream() -> int:
    """The address of torch's current stream."""
    stream: int = sys.modules["torch"].cuda.current_stream().cuda_stream
    return stream


def _cupy() -> Any:
    """CuPy, which a store in a GPU's memory has imported."""
    return sys.modules["cupy"]
