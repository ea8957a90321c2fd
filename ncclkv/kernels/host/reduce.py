"""Sums, averages, extremes and products of equal arrays.

The rules are those of NumPy: integers wrap, a sum of bools is their logical or and a product their
logical and, and NaN wins every maximum and minimum.  16-bit floats are combined in float32 and
rounded once; the sum of an average of integers is made in 64 bits.  If the kernels in C are active,
they make sums and averages of floats.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ncclkv.kernels.base import Array, Arrays
from ncclkv.kernels.host import compiled
from ncclkv.kernels.host.chunks import blocks, ranges, scratch
from ncclkv.kernels.host.errstate import Quiet
from ncclkv.kernels.host.pack import cast

_STEP: dict[str, np.ufunc] = {
    "sum": np.add,
    "avg": np.add,
    "max": np.maximum,
    "min": np.minimum,
    "prod": np.multiply,
}


def combine(values: Arrays, slot: Array, op: str) -> None:
    """Reduce one rank's `values` of a key (any strides, one shape) into the flat `slot`."""
    if compiled.sums(slot.dtype, op) and _total(values, slot, average=False, stream=False):
        return
    shape = values[0].shape
    target = slot.reshape(shape)
    rows = scratch(2, slot.size, slot.dtype)
    with np.errstate(all="ignore"):
        for block in blocks(shape, rows.shape[1]):
            chunk = target[block]
            buffers = rows[:, : chunk.size].reshape(2, *chunk.shape)
            _fold([value[block] for value in values], buffers, chunk, _STEP[op])


def reduce(parts: Arrays, out: Array, op: str) -> None:
    """Reduce the ranks' flat `parts`, in their order, into `out`, which may be one of them."""
    FlatReducer(out.dtype, out.size, op)(parts, out)


def divide(array: Array, count: int) -> None:
    """Divide the flat sum of `count` arrays by the count, in place; integers toward zero."""
    finish(array, count, array, "avg")


class FlatReducer:
    """Reductions of flat arrays, with scratch memory that is kept between calls.

    Parameters
    ----------
    dtype : dtype
    count : int
        Elements of an array, at most.
    op : str
    """

    def __init__(self, dtype: np.dtype[Any], count: int, op: str) -> None:
        self._scratch = scratch(2, count, dtype, op)
        self._length = self._scratch.shape[1]
        self._op = op
        self._compiled = compiled.sums(dtype, op)
        self._quiet = Quiet()

    def __call__(self, parts: Arrays, out: Array, stream: bool = False) -> None:
        """Reduce `parts`, in their order, into `out`, which may be one of them.

        Parameters
        ----------
        parts : sequence of ndarray
        out : ndarray
        stream : bool
            Write `out` with non-temporal stores: it is read late, from memory.
        """
        if self._compiled:
            average = self._op == "avg"
            # Without the call of `_total`, which costs as much as a short sum.
            if parts[0].dtype.kind == "f":
                done = compiled.total(parts, out, average, stream)
            else:
                done = _total(parts, out, average=average, stream=stream)
            if done:
                return
        self._quiet.run(self._reduce, parts, out)

    def _reduce(self, parts: Arrays, out: Array) -> None:
        count = out.size
        if count == self._length:
            _reduce_chunk(parts, self._scratch, out, self._op)
            return
        for chunk in ranges(count, self._length):
            buffers = self._scratch[:, : chunk.stop - chunk.start]
            _reduce_chunk([part[chunk] for part in parts], buffers, out[chunk], self._op)


def _total(parts: Arrays, out: Array, *, average: bool, stream: bool) -> bool:
    """Sum parts in C; return whether C has done it.  Parts of 16 bits may have a wider sum."""
    kind = parts[0].dtype.kind
    if kind == "V":
        parts, out = [compiled.words(part) for part in parts], compiled.words(out)
    # C would take integers of 16 bits for bfloat16.
    return kind in "fV" and compiled.total(parts, out, average, stream)


def _reduce_chunk(parts: Arrays, buffers: Array, out: Array, op: str) -> None:
    """Reduce parts of the length of `buffers`."""
    if op == "avg":
        total = buffers[0]
        _fold(parts, buffers, total, np.add)
        _divide(total, len(parts), out)
    else:
        _fold(parts, buffers, out, _STEP[op])


def finish(total: Array, count: int, out: Array, op: str) -> None:
    """Round a `total` of `count` parts as `reduce` does: divide an average, and cast to `out`."""
    if op == "avg":
        with np.errstate(all="ignore"):
            _divide(total, count, out)
    else:
        cast(out, total)


def _fold(parts: Arrays, buffers: Array, out: Array, step: np.ufunc) -> None:
    """Combine `parts` in order into `out`, which is written last: it may be one of them."""
    if len(parts) == 1:
        np.copyto(out, parts[0])
        return
    if parts[0].dtype != buffers.dtype:
        _fold_widened(parts, buffers, out, step)
        return
    first, *between, last = parts
    if between:
        total = buffers[0, ...]
        for part in between:
            first = step(first, part, out=total)
    step(first, last, out=out)


def _fold_widened(parts: Arrays, buffers: Array, out: Array, step: np.ufunc) -> None:
    """Combine as `_fold` does, in the dtype of `buffers`, and round once."""
    # The dots make an array also of a row without dimensions, which would else be a scalar.
    total, widened = buffers[0, ...], buffers[1, ...]
    np.copyto(total, parts[0])
    for part in parts[1:]:
        np.copyto(widened, part)
        step(total, widened, out=total)
    np.copyto(out, total, casting="same_kind")


def _divide(total: Array, count: int, out: Array) -> None:
    """Divide a contiguous `total` by `count` into `out`; integers toward zero."""
    if total.dtype.kind in "iu":
        # In 64 bits: `count` itself may not fit a narrow dtype.
        wide = total.astype(np.uint64 if total.dtype.kind == "u" else np.int64)
        divisor = wide.dtype.type(count)
        # fmod has the sign of the total: without its remainder the total divides exactly.
        wide -= np.fmod(wide, divisor)
        np.floor_divide(wide, divisor, out=wide)
        np.copyto(out, wide, casting="same_kind")
        return
    if total.dtype.kind == "c":
        # Complex division by a real would make NaN of an infinite part.
        total = total.view(total.real.dtype)
        out = out.view(total.dtype)
    np.divide(total, total.dtype.type(count), out=out)
