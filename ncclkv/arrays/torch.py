"""torch tensors in host memory."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from ncclkv.arrays import device
from ncclkv.arrays.dtypes import bfloat16
from ncclkv.errors import NotSupported, UsageError


def recognises(x: Any) -> bool:
    """Return whether `x` is torch's."""
    tensor = getattr(sys.modules.get("torch"), "Tensor", None)
    return tensor is not None and isinstance(x, tensor)


def value(x: Any, what: str) -> NDArray[Any]:
    """View `x`, detached, to read from; lazy conjugation and negation are carried out."""
    _check_host(x, what, device.VALUE_ADVICE)
    return _view(x.detach().resolve_conj().resolve_neg(), what)


def out(x: Any, what: str) -> NDArray[Any]:
    """View `x`, detached, to write into; `mark_written` tells autograd of the write."""
    _check_host(x, what, device.OUT_ADVICE)
    check_eager(x, what)
    return _view(x.detach(), what)


def tensors(given: Any) -> list[Any]:
    """Return the tensors of an array, or of a list of arrays and lists, in order."""
    if isinstance(given, (list, tuple)):
        return [tensor for item in given for tensor in tensors(item)]
    return [given] if recognises(given) else []


def mark_written(written: Sequence[Any]) -> None:
    """Tell autograd that tensors change: a graph that has saved one then refuses to go backward."""
    for tensor in written:
        if not tensor.is_inference():  # these have no version
            sys.modules["torch"].autograd.graph.increment_version(tensor)


def check_eager(x: Any, what: str) -> None:
    """Refuse to write into a tensor that stands for a computation on another."""
    if x.is_conj() or x.is_neg():
        raise UsageError(
            f"{what}: out is a lazily conjugated or negated view of another tensor; "
            "pass that tensor, or .resolve_conj().resolve_neg() of this one"
        )


def _check_host(x: Any, what: str, advice: str) -> None:
    """Refuse tensors that are not plain strided host memory."""
    if x.device.type == "meta":
        raise UsageError(f"{what}: the tensor is on torch's meta device and has no data")
    if x.device.type != "cpu":
        raise device.refusal(f"a torch tensor on {x.device}", ".cpu()", what, advice)
    if x.layout is not sys.modules["torch"].strided:
        raise NotSupported(f"{what}: the tensor's layout is {x.layout}; pass its .to_dense()")
    if x.is_quantized:
        raise NotSupported(f"{what}: the tensor is quantised; pass its .dequantize()")


def _view(x: Any, what: str) -> NDArray[Any]:
    """View a detached tensor's memory as NumPy's."""
    torch = sys.modules["torch"]
    # torch has no bfloat16 to give to NumPy; the bits travel as integers of the same size.
    bits = bfloat16(what) if x.dtype is torch.bfloat16 else None
    try:
        array: NDArray[Any] = (x if bits is None else x.view(torch.int16)).numpy()
    except (TypeError, RuntimeError) as error:
        raise NotSupported(
            f"{what}: torch gives no view of this {type(x).__name__} of {x.dtype} ({error}); "
            "pass a plain tensor of a dtype that NumPy has"
        ) from error
    return array if bits is None else array.view(bits)
