"""Arrays of a program, and their reductions by NumPy alone.

Arrays hold small integers, so that sums are exact in every order, in 16 bits too.  Sums of 8
bits wrap around.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.world.plan import KeyPlan

Array = NDArray[Any]

_OPS: dict[str, Callable[..., Any]] = {
    "sum": np.sum,
    "avg": np.sum,
    "max": np.max,
    "min": np.min,
    "prod": np.prod,
}


def payload(key: KeyPlan, rank: int, step: int, item: int = 0) -> Array:
    """Return a rank's array for a key in the step of that index; it is read-only."""
    return _payload(key.shape, key.dtype, key.op, 3 * rank + step % 7 + item)


def vector(rank: int, step: int, size: int, dtype: str = "f8", op: str = "sum") -> Array:
    """Return a rank's array for a verb without keys; it is read-only."""
    return payload(KeyPlan("", (size,), dtype, op), rank, step)


@lru_cache(maxsize=512)
def _payload(shape: tuple[int, ...], dtype: str, op: str, shift: int) -> Array:
    whole = np.arange(int(np.prod(shape))) % 5 + (1 + shift)  # from 1 to 21
    array = _numbers(whole, np.dtype(dtype), op).astype(dtype).reshape(shape)
    array.flags.writeable = False
    return array


def _numbers(whole: Array, dtype: np.dtype[Any], op: str) -> Array:
    """Return other integers, which fit a dtype and an op."""
    if dtype.kind == "b":
        return whole % 3 == 0
    if op == "prod":
        return whole % 2 + 1
    if dtype.kind == "i":
        whole = whole - 10  # an average is rounded toward zero
    if op == "avg":
        # Arrays of 1 to 4 ranks divide floats exactly; two arrays of a rank fit into 8 bits.
        whole = whole * (5 if dtype.kind in "iu" else 12)
    return whole + whole % 4 * 1j if dtype.kind == "c" else whole


def reduced(arrays: Sequence[Array], op: str, ranks: int) -> Array:
    """Reduce the arrays that some ranks have pushed; an average is over so many ranks."""
    dtype = arrays[0].dtype
    # NumPy sums integers and bools in 64 bits.
    total = np.asarray(_OPS[op](np.stack(arrays), axis=0))
    if op == "avg":
        exact = dtype.kind not in "iu"
        total = total / ranks if exact else np.sign(total) * (np.abs(total) // ranks)
    return total.astype(dtype)
