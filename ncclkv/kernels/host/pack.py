"""Between users' arrays and flat slots."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ncclkv.kernels.base import Array


def pack(value: Array, slot: Array) -> None:
    """Copy `value` (any shape and strides) into the flat `slot` of the same size and dtype."""
    np.copyto(slot.reshape(value.shape), value)


def unpack(slot: Array, out: Array) -> None:
    """Copy the flat `slot` into `out` (any shape and strides), casting as ``astype`` does."""
    np.copyto(out, slot.reshape(out.shape), casting="unsafe")


def pack_all(values: Sequence[Array], slots: Sequence[Array], table: None = None) -> None:
    """Pack each value into its slot."""
    for value, slot in zip(values, slots, strict=True):
        pack(value, slot)


def unpack_all(slots: Sequence[Array], outs: Sequence[Array], table: None = None) -> None:
    """Unpack each slot into its out."""
    for slot, out in zip(slots, outs, strict=True):
        unpack(slot, out)
