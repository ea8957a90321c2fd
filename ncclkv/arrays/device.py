"""Arrays in a device's memory: stores in host memory recognise and refuse them."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from ncclkv.errors import NotSupported

VALUE_ADVICE = "pass its {copy}"
OUT_ADVICE = "give a host array as out, and copy that to the device"

_COPIES = {"cupy": ".get()", "numba": ".copy_to_host()", "torch": ".cpu()"}


def recognises(x: Any) -> bool:
    """Return whether `x` offers a view of a GPU's memory."""
    return hasattr(x, "__cuda_array_interface__")


def value(x: Any, what: str) -> NDArray[Any]:
    """Refuse `x`, with the call that copies it to the host."""
    raise refusal(describe(x), copy_of(x), what, VALUE_ADVICE)


def out(x: Any, what: str) -> NDArray[Any]:
    """Refuse `x`, with the change that helps."""
    raise refusal(describe(x), copy_of(x), what, OUT_ADVICE)


def describe(x: Any) -> str:
    """Return a text that names the type of `x` and its library."""
    return f"a {_library_name(x)} {type(x).__name__}"


def copy_of(x: Any) -> str:
    """Return the call that copies `x` to the host."""
    return _COPIES.get(_library_name(x), "copy in host memory (a NumPy array)")


def refusal(subject: str, copy: str, what: str, advice: str) -> NotSupported:
    """Return the error for `subject`, an array in a device's memory."""
    return NotSupported(
        f"{what}: {subject} is in a device's memory and this store takes host memory; "
        + advice.format(copy=copy)
    )


def _library_name(x: Any) -> str:
    """Return the name of the package that defines the type of `x`."""
    return type(x).__module__.partition(".")[0]
