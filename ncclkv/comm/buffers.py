"""Host memory for buffers, and which ops they take."""

from __future__ import annotations

from typing import Any

import numpy as np

from ncclkv.comm.base import ALIGNMENT, OPS, Buffer
from ncclkv.errors import NotSupported, UsageError


def allocate(nbytes: int) -> Buffer:
    """Zeroed uint8 host memory, aligned to `ALIGNMENT` bytes."""
    space = np.zeros(nbytes + ALIGNMENT, np.uint8)
    start = -space.ctypes.data % ALIGNMENT
    return space[start : start + nbytes]


def check_op(op: str, dtype: np.dtype[Any], what: str = "") -> None:
    """Refuse an `op` that is unknown, or has no meaning for `dtype`; `what` begins the message."""
    if op not in OPS:
        raise UsageError(f"{what}unknown op {op!r}; the ops are {', '.join(OPS)}")
    if dtype.kind == "c" and op in ("max", "min"):
        raise NotSupported(f"{what}{op} of {dtype}: complex numbers have no order; use sum or avg")
    if dtype.kind == "b" and op == "avg":
        raise NotSupported(f"{what}avg of bool: use sum, which is a logical or, or push integers")
