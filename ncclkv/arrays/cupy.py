"""CuPy arrays, and the arrays of other libraries in a GPU's memory as CuPy views of it.

The GPU may be any that the process sees.
"""

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


def is_own(x: Any) -> bool:
    """Tell whether `x` is CuPy's own, so that no other library is asked for a view of it."""
    return isinstance(x, _cupy().ndarray)


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
    """View a torch tensor; the store's work on it is queued on CuPy's current stream there."""
    device = x.device.index
    if _cupy().cuda.get_current_stream(device).ptr != _torch_stream(device):
        raise UsageError(
            f"{what}: torch's current stream of device {device} is not CuPy's, on which the store "
            f"would use this tensor; call it inside: with cupy.cuda.ExternalStream("
            f"torch.cuda.current_stream({device}).cuda_stream, {device})"
        )
    try:
        array: NDArray[Any] = _cupy().from_dlpack(x)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise NotSupported(
            f"{what}: CuPy cannot view this tensor of {x.dtype} through DLPack ({error}); pass it "
            f"as a CuPy array"
        ) from error
    return array


def _torch_stream(device: int) -> int:
    """The address of torch's current stream of a device."""
    stream: int = sys.modules["torch"].cuda.current_stream(device).cuda_stream
    return stream


def _cupy() -> Any:
    """CuPy, which a store in a GPU's memory has imported."""
    return sys.modules["cupy"]
