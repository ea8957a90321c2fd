"""Collectives of the emulated NCCL: each one, with each dtype and op, against NumPy."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.nccl.emulated.collectives import DTYPES, OPS, Array, check, create
from tests.nccl.emulated.worlds import World, run

SIZES = pytest.mark.parametrize("size", [1, 2, 3, 4])
REDUCTIONS = ("all_reduce", "reduce", "reduce_scatter")
COUNTS = (1, 5, 1024, 70_001)
"""Lengths of arrays; the last needs several steps in all types, and is no multiple of a size."""


def values(rank: int, count: int, dtype: np.dtype[Any]) -> Any:
    """Return numbers of a rank that wrap around or are rounded, with a NaN if possible."""
    random = np.random.default_rng([rank, count])
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return random.integers(limits.min, limits.max, count, dtype, endpoint=True)
    made = random.normal(0, 3, count)
    if rank == count % 3:
        made[:: 1 + count // 3] = np.nan
    return made.astype(dtype)


def expected(parts: list[Any], op: str) -> Any:
    """Return NCCL's reduction of arrays, in the order of the ranks."""
    dtype = parts[0].dtype
    is_short = dtype.itemsize == 2
    if op == "avg" and dtype.kind not in "iu":
        # The factor and the products have the array's type; NumPy rounds each of them so.
        factor = np.float64(1 / len(parts)).astype(np.float32 if is_short else dtype).astype(dtype)
        parts = [(part * factor).astype(dtype) for part in parts]
    if is_short:
        parts = [part.astype(np.float32) for part in parts]
    functions = {"prod": np.multiply, "max": np.fmax, "min": np.fmin}
    total = parts[0]
    for part in parts[1:]:
        total = functions.get(op, np.add)(total, part)
    if op == "avg" and dtype.kind in "iu":
        # NumPy's own division of integers rounds down.
        quotient = np.abs(total.astype(object)) // len(parts)
        total = np.where(total < 0, -quotient, quotient)
    return total.astype(dtype)


def same(got: Any, want: Any) -> bool:
    """Return whether two arrays have equal bits, or NaN at equal indices."""
    got, want = got.astype(want.dtype), want
    if want.dtype.kind in "iu":
        return bool(np.array_equal(got, want))
    wide = (got.astype(np.float64), want.astype(np.float64))
    return bool(np.array_equal(*wide, equal_nan=True))


def reduce_all(world: World, name: str) -> list[str]:
    """Reduce with all dtypes, ops and counts; return the wrong results."""
    comm = create(world)
    wrong = []
    with np.errstate(all="ignore"):
        for dtype in DTYPES:
            for op in OPS:
                for count in COUNTS:
                    if not _reduce(comm, name, dtype, op, count):
                        wrong.append(f"{dtype} {op} {count}")
    check(comm.destroy())
    return wrong


def _reduce(comm: Any, name: str, dtype: np.dtype[Any], op: str, count: int) -> bool:
    """Make one reduction out of place and in place; return whether both are correct."""
    size = comm.size
    parts = size if name == "reduce_scatter" else 1
    inputs = [values(rank, parts * count, dtype) for rank in range(size)]
    want = expected(inputs, op)
    own = slice(comm.rank * count, (comm.rank + 1) * count) if parts > 1 else slice(0, count)
    root = count % size
    more = {"root": root} if name == "reduce" else {}
    source, to = Array(inputs[comm.rank]), Array(np.zeros(count, dtype))
    place = source.at(own.start)
    check(getattr(comm, name)(source.pointer, to.pointer, count, dtype, op, **more))
    comm.synchronize()
    untouched = source.get()
    check(getattr(comm, name)(source.pointer, place, count, dtype, op, **more))
    comm.synchronize()
    results = to.get(), source.get()[own]
    source.free()
    to.free()
    if name == "reduce" and comm.rank != root:
        return not results[0].any() and same(results[1], inputs[comm.rank])
    return same(untouched, inputs[comm.rank]) and all(same(each, want[own]) for each in results)


@SIZES
@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions_of_all_dtypes_and_ops(size: int, name: str) -> None:
    for rank in run(reduce_all, size, name):
        assert rank.result == []


def move_all(world: World) -> list[str]:
    """Broadcast and gather with all dtypes and counts; return the wrong results."""
    comm = create(world)
    wrong = []
    for dtype in [*DTYPES, np.dtype(ml_dtypes.float8_e4m3fn)]:
        number = DTYPES.get(dtype, 10)
        for count in COUNTS:
            inputs = [values(rank, count, dtype) for rank in range(comm.size)]
            root = count % comm.size
            source, to = Array(inputs[comm.rank]), Array(np.zeros(count, dtype))
            check(comm.broadcast(source.pointer, to.pointer, count, number, root))
            comm.synchronize()
            if not same(to.get(), inputs[root]):
                wrong.append(f"broadcast of {dtype}")
            check(comm.broadcast(source.pointer, source.pointer, count, number, root))
            comm.synchronize()
            if not same(source.get(), inputs[root]):
                wrong.append(f"broadcast of {dtype} in place")
            whole = Array(np.zeros(count * comm.size, dtype))
            own = Array(inputs[comm.rank])
            check(comm.all_gather(own.pointer, whole.pointer, count, number))
            comm.synchronize()
            if not same(whole.get(), np.concatenate(inputs)):
                wrong.append(f"gather of {dtype}")
            check(comm.all_gather(whole.at(comm.rank * count), whole.pointer, count, number))
            comm.synchronize()
            if not same(whole.get(), np.concatenate(inputs)):
                wrong.append(f"gather of {dtype} in place")
            for array in (source, to, whole, own):
                array.free()
    check(comm.destroy())
    return wrong


@SIZES
def test_copies_of_all_dtypes(size: int) -> None:
    for rank in run(move_all, size):
        assert rank.result == []


def many_sizes(world: World) -> list[int]:
    """Sum arrays of sizes around the edges of steps and of their parts."""
    comm = create(world)
    wrong = []
    for count in [65_535, 65_536, 65_537, 131_072, 131_073, 1_000_003]:
        for name in ("all_reduce", "reduce_scatter", "all_gather"):
            parts = comm.size if name != "all_reduce" else 1
            source = Array(np.arange(parts * count, dtype=np.int32) + comm.rank)
            to = Array(np.zeros(parts * count, np.int32))
            check(getattr(comm, name)(source.pointer, to.pointer, count, np.int32))
            comm.synchronize()
            total = comm.size * np.arange(parts * count) + sum(range(comm.size))
            rows = np.arange(count) + np.arange(comm.size)[:, None]
            want = {
                "all_reduce": total,
                "reduce_scatter": total[comm.rank * count : (comm.rank + 1) * count],
                "all_gather": rows.ravel(),
            }[name]
            if not np.array_equal(to.get()[: want.size], want):
                wrong.append(count)
            source.free()
            to.free()
    check(comm.destroy())
    return wrong


@SIZES
def test_any_size(size: int) -> None:
    for rank in run(many_sizes, size):
        assert rank.result == []


def special_numbers(world: World) -> dict[str, list[Any]]:
    """Reduce special numbers, for which the types have different results, on 2 ranks."""
    comm = create(world)

    def result(numbers: tuple[list[float], list[float]], dtype: Any, op: str) -> list[Any]:
        array = Array(np.array(numbers[comm.rank], dtype))
        check(comm.all_reduce(array.pointer, array.pointer, array.size, dtype, op))
        comm.synchronize()
        return list(array.get().astype(np.float64))

    nan, inf = np.nan, np.inf
    return {
        "average of integers": result(([-3, -1, 3, -128], [0, 0, 0, 0]), np.int8, "avg"),
        "average that overflows": result(([100, -100], [100, -100]), np.int8, "avg"),
        "maximum": result(([nan, nan, 1], [2, nan, nan]), np.float32, "max"),
        "minimum": result(([nan, nan, 1], [2, nan, nan]), np.float16, "min"),
        "sum": result(([nan, inf, 1], [2, -inf, 2]), np.float64, "sum"),
        "half that overflows": result(([65504, 40000], [16, 40000]), np.float16, "sum"),
        "half that does not": result(([40000], [40000]), np.float16, "avg"),
        "subnormal halves": result(([2.0**-24, 2.0**-15], [2.0**-24, 0]), np.float16, "sum"),
        "unsigned": result(([200, 3], [100, 2]), np.uint8, "avg"),
    }


def test_numbers_in_which_the_types_differ() -> None:
    nan, inf = np.nan, np.inf
    want = {
        # toward zero
        "average of integers": [-1, 0, 1, -64],
        # The sum wraps around before the division: 200 is -56.
        "average that overflows": [-28, 28],
        # A NaN is dropped if the other rank has a number.
        "maximum": [2, nan, 1],
        "minimum": [2, nan, 1],
        "sum": [nan, nan, 3],
        "half that overflows": [inf, inf],
        # Each operand is multiplied by 1/2 first.
        "half that does not": [40000],
        "subnormal halves": [2.0**-23, 2.0**-15],
        "unsigned": [22, 2],
    }
    for rank in run(special_numbers, 2):
        for name, numbers in want.items():
            assert np.array_equal(rank.result[name], numbers, equal_nan=True), name
