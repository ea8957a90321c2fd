"""NumPy arrays and scalars."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ncclkv.errors import UsageError


def recognises(x: Any) -> bool:
    """Return whether `x` is NumPy's."""
    return isinstance(x, (np.ndarray, np.generic))


def view(x: Any, what: str, *, write: bool) -> NDArray[Any]:
    """View `x` as a plain `ndarray`: the kernels must not call a subclass's operators.

    A scalar to read from becomes an array without dimensions.
    """
    if isinstance(x, np.generic):
        if write:
            raise UsageError(
                f"{what}: out is a NumPy scalar ({type(x).__name__}), which cannot be written; "
                "pass an array of shape ()"
            )
        return np.asarray(x)
    if isinstance(x, np.ma.MaskedArray):
        raise UsageError(
            f"{what}: a masked array hides elements that a sum would count; pass its .filled(0)"
        )
    array: NDArray[Any] = x.view(np.ndarray)
    return array
