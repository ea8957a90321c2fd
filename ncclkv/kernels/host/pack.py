"""Copies between users' arrays and flat slots, and between flat arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ncclkv.kernels.base import Array, Arrays
from ncclkv.kernels.host import compiled


def pack(value: Array, slot: Array) -> None:
    """Copy `value` (any shape and strides) into the flat `slot` of the same size and dtype."""
    np.copyto(slot.reshape(value.shape), value)


def unpack(slot: Array, out: Array) -> None:
    """Copy `slot` (any shape) into `out` (any shape and strides), casting as ``astype`` does."""
    cast(out, slot.reshape(out.shape))


def cast(out: Array, values: Array) -> None:
    """Copy `values` into `out` of the same shape, casting as ``astype`` does; in C if possible."""
    # C would take integers of 16 bits for bfloat16.
    floats = out.dtype.kind in "fV" and values.dtype.kind in "fV"
    if floats and compiled.active and compiled.cast(compiled.words(out), compiled.words(values)):
        return
    with np.errstate(all="ignore"):
        np.copyto(out, values, casting="unsafe")


def move(target: Array, source: Array, whole: int) -> None:
    """Copy a flat array; with non-temporal stores if `whole`, the bytes of all parts, is large."""
    stream = compiled.active and whole >= compiled.STREAM_BYTES
    if not (stream and compiled.copy(target, source, True)):
        target[...] = source


class Table(NamedTuple):
    """Slots in the shapes of the arrays that are copied.

    Attributes
    ----------
    views : sequence of ndarray
        The slots, each in the shape of its array.
    casts : bool
        Whether a slot and its array differ in dtype.
    long : sequence of bool
        Whether each slot is copied with non-temporal stores; empty if no slot is.
    """

    views: Arrays
    casts: bool
    long: Sequence[bool]


def pack_all(values: Arrays, slots: Arrays, table: Table | None = None) -> Table:
    """Pack each value into its slot."""
    table = table or _table(slots, values)
    if table.long:
        _stream_all(table.views, values, table.long)
    elif len(table.views) == 1:  # zip takes longer than a copy of 4 KiB
        table.views[0][...] = values[0]
    else:
        for view, value in zip(table.views, values, strict=True):
            view[...] = value
    return table


def unpack_all(slots: Arrays, outs: Arrays, table: Table | None = None) -> Table:
    """Unpack each slot into its out."""
    table = table or _table(slots, outs)
    if table.casts:
        for slot, out in zip(slots, outs, strict=True):
            unpack(slot, out)
    elif table.long:
        _stream_all(outs, table.views, table.long)
    elif len(table.views) == 1:
        outs[0][...] = table.views[0]
    else:
        for view, out in zip(table.views, outs, strict=True):
            out[...] = view
    return table


def _stream_all(targets: Arrays, sources: Arrays, long: Sequence[bool]) -> None:
    """Copy each source to its target, long arrays with non-temporal stores."""
    for target, source, is_long in zip(targets, sources, long, strict=True):
        if not (is_long and compiled.copy(target, source, True)):
            target[...] = source


def _table(slots: Arrays, arrays: Arrays) -> Table:
    """Return the table of slots and arrays.

    Slots of flat arrays need no view: a view costs as much as a small copy.
    """
    pairs = list(zip(slots, arrays, strict=True))
    views = tuple(slot if array.ndim == 1 else slot.reshape(array.shape) for slot, array in pairs)
    casts = any(slot.dtype != array.dtype for slot, array in pairs)
    return Table(views, casts, _long(pairs) if compiled.active else ())


def _long(pairs: Sequence[tuple[Array, Array]]) -> Sequence[bool]:
    """Return whether each array is copied with non-temporal stores; empty if none is."""
    if max(_bucket_bytes(slot) for slot, _ in pairs) < compiled.STREAM_BYTES:
        return ()
    return tuple(
        slot.nbytes >= compiled.STREAM_PART_BYTES and slot.dtype == array.dtype
        for slot, array in pairs
    )


def _bucket_bytes(slot: Array) -> int:
    """Return the bytes of the array that contains a slot."""
    whole: Array = slot if slot.base is None else slot.base
    return int(whole.nbytes)
