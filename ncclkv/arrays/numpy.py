"""NumPy arrays and scalars."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ncclkv.errors import UsageError


def recognises(x: Any) -> bool:
    """Return whether `x` is NumPy's."""
    return isinstance(x, (np.ndarray, np.generic))


def value(x: Any, what: str) -> NDArray[Any]:
    """View `x` to read from; a scalar becomes an array without dimensions."""
    if isinstance(x, np.generic):
        return np.asarray(x)
    return _base_class(x, what)


def out(x: Any, what: str) -> NDArray[Any]:
    """View `x` to write into."""
    if isinstance(x, np.generic):
        raise UsageError(
            f"{what}: out is a NumPy scalar ({type(x).__name__}), which cannot be written; "
            "pass an array of shape ()"
        )
    return _base_class(x, what)


def _base_class(x: NDArray[Any], what: str) -> NDArray[Any]:
    """View a subclass as plain `ndarray`: the kernels must not call a subclass's operators."""
    if isinstance(x, np.ma.MaskedArray):
        raise UsageError(
            f"{what}: a masked array hides elements that a sum would count; pass its .filled(0)"
        )
    return x.view(np.ndarray)
