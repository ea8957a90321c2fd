"""torch tensors in host memory."""

from __future__ import annotations

import sys
from operator import attrgetter
from typing import Any

from numpy.typing import NDArray

from ncclkv.arrays import device
from ncclkv.arrays.dtypes import bfloat16
from ncclkv.errors import NotSupported, UsageError

_is_quantised = attrgetter("is_quantized")


def recognises(x: Any) -> bool:
    """Return whether `x` is torch's."""
    tensor = getattr(sys.modules.get("torch"), "Tensor", None)
    return tensor is not None and isinstance(x, tensor)


def view(x: Any, what: str, *, write: bool) -> NDArray[Any]:
    """View `x`, detached; after a write `mark_written` records it for autograd."""
    _check_host(x, what, write)
    return _view(detached(x, what, write=write), what)


def plain_views(given: Any) -> Any:
    """Return NumPy views of a tensor, or of a list of tensors, made without a look at each.

    None if an item is no tensor, or one that `view` has to look at: those of other memories and
    layouts, of bfloat16 or quantised, and lazy computations.
    """
    torch: Any = sys.modules.get("torch")
    tensor: Any = getattr(torch, "Tensor", None)
    if tensor is None:
        return None
    several = isinstance(given, (list, tuple))
    items = given if several else [given]
    kinds = {tensor, getattr(getattr(torch, "nn", None), "Parameter", tensor)}
    if not kinds.issuperset(map(type, items)) or any(map(_is_quantised, items)):
        return None
    try:
        views = [*map(tensor.numpy, map(tensor.detach, items))]
    except (TypeError, RuntimeError):
        return None
    return views if several else views[0]


def detached(x: Any, what: str, *, write: bool) -> Any:
    """Return `x` outside of autograd's graph; resolve lazy conjugation and negation to read.

    To write, refuse a tensor that is a lazy computation on another tensor.
    """
    if not write:
        return x.detach().resolve_conj().resolve_neg()
    if x.is_conj() or x.is_neg():
        raise UsageError(
            f"{what}: out is a lazily conjugated or negated view of another tensor; "
            "pass that tensor, or .resolve_conj().resolve_neg() of this one"
        )
    return x.detach()


def mark_written(x: Any) -> None:
    """Record a write for autograd: backward then refuses a graph that has saved the tensor."""
    if not x.is_inference():  # inference tensors have no version counter
        sys.modules["torch"].autograd.graph.increment_version(x)


def _check_host(x: Any, what: str, write: bool) -> None:
    """Refuse tensors that are not strided memory of the host."""
    if x.device.type == "meta":
        raise UsageError(
            f"{what}: the tensor is on torch's meta device and has no data; pass a tensor with data"
        )
    if x.device.type != "cpu":
        raise device.refusal(f"a torch tensor on {x.device}", ".cpu()", what, write=write)
    if x.layout is not sys.modules["torch"].strided:
        raise NotSupported(f"{what}: the tensor's layout is {x.layout}; pass its .to_dense()")
    if x.is_quantized:
        raise NotSupported(f"{what}: the tensor is quantised; pass its .dequantize()")


def _view(x: Any, what: str) -> NDArray[Any]:
    """View a detached tensor's memory as NumPy's."""
    torch = sys.modules["torch"]
    # torch refuses a NumPy view of bfloat16, so the bits are viewed as integers first.
    bits = bfloat16(what) if x.dtype is torch.bfloat16 else None
    try:
        array: NDArray[Any] = (x if bits is None else x.view(torch.int16)).numpy()
    except (TypeError, RuntimeError) as error:
        raise NotSupported(
            f"{what}: torch gives no view of this {type(x).__name__} of {x.dtype} ({error}); "
            "pass a plain tensor of a dtype that NumPy has"
        ) from error
    return array if bits is None else array.view(bits)
