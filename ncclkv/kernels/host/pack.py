"""Between users' arrays and flat slots."""

from __future__ import annotations

import numpy as np

from ncclkv.kernels.base import Array


def pack(value: Array, slot: Array) -> None:
    """Copy `value` (any shape and strides) into the flat `slot` of the same size and dtype."""
    np.copyto(slot.reshape(value.shape), value)


def unpack(slot: Array, out: Array) -> None:
    """Copy the flat `slot` into `out` (any shape and strides), casting as ``astype`` does."""
    np.copyto(out, slot.reshape(out.shape), casting="unsafe")
