"""Arrays in a device's memory: stores in host memory recognise and refuse them."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from ncclkv.errors import NotSupported

_COPIES = {"cupy": ".get()", "numba": ".copy_to_host()", "torch": ".cpu()"}


def recognises(x: Any) -> bool:
    """Return whether `x` offers a view of a GPU's memory."""
    return hasattr(x, "__cuda_array_interface__")


def view(x: Any, what: str, *, write: bool) -> NDArray[Any]:
    """Refuse `x`, with the change that helps."""
    raise refusal(describe(x), copy_of(x), what, write=write)


def describe(x: Any) -> str:
    """Return a text that names the type of `x` and its library."""
    return f"a {_library_name(x)} {type(x).__name__}"


def copy_of(x: Any) -> str:
    """Return the call that copies `x` to the host."""
    return _COPIES.get(_library_name(x), "copy in host memory (a NumPy array)")


def refusal(subject: str, copy: str, what: str, *, write: bool) -> NotSupported:
    """Return the error for `subject`, an array in a device's memory; `copy` reads it."""
    instead = "give a host array as out, and copy that to the device"
    advice = instead if write else f"pass its {copy}"
    return NotSupported(
        f"{what}: {subject} is in a device's memory and this store takes host memory; {advice}"
    )


def _library_name(x: Any) -> str:
    """Return the name of the package that defines the type of `x`."""
    return type(x).__module__.partition(".")[0]
