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
    with np.errstate(all="ignore"):
        np.copyto(out, slot.reshape(out.shape), casting="unsafe")


def pack_all(
    values: Sequence[Array], slots: Sequence[Array], table: Sequence[Array] | None = None
) -> Sequence[Array]:
    """Pack each value into its slot; the table is the slots, each of its value's shape."""
    if table is None:
        table = [slot.reshape(value.shape) for slot, value in zip(slots, values, strict=True)]
    for view, value in zip(table, values, strict=True):
        view[...] = value
    return table


def unpack_all(
    slots: Sequence[Array], outs: Sequence[Array], table: Sequence[Array] | None = None
) -> Sequence[Array]:
    """Unpack each slot into its out; the table is the slots, each of its out's shape."""
    if table is None:
        table = [slot.reshape(out.shape) for slot, out in zip(slots, outs, strict=True)]
    with np.errstate(all="ignore"):
        for view, out in zip(table, outs, strict=True):
            out[...] = view
    return table
