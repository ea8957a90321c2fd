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
        table = _shaped(slots, values)
    for view, value in zip(table, values, strict=True):
        view[...] = value
    return table


def unpack_all(
    slots: Sequence[Array], outs: Sequence[Array], table: tuple[Sequence[Array], bool] | None = None
) -> tuple[Sequence[Array], bool]:
    """Unpack each slot into its out.

    The table is the slots, each of its out's shape, and whether any is cast.
    """
    if table is None:
        casts = any(slot.dtype != out.dtype for slot, out in zip(slots, outs, strict=True))
        table = _shaped(slots, outs), casts
    views, casts = table
    if casts:
        for slot, out in zip(slots, outs, strict=True):
            unpack(slot, out)
    else:
        for view, out in zip(views, outs, strict=True):
            out[...] = view
    return table


def _shaped(slots: Sequence[Array], arrays: Sequence[Array]) -> Sequence[Array]:
    """The slots as views of the arrays' shapes; those that are flat anyway as they are.

    A view fewer is a place of memory fewer to look at, of which small arrays are mostly made.
    """
    pairs = zip(slots, arrays, strict=True)
    return [slot if array.ndim == 1 else slot.reshape(array.shape) for slot, array in pairs]
