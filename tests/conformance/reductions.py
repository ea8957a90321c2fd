"""`op`, and several values of a key: order and rounding of the combination."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ncclkv.errors import NotSupported, UsageError
from tests.conformance.capabilities import current_buffers
from tests.conformance.expect import full, intact, probed, pulled, refused, same, total
from tests.conformance.registry import case
from tests.conformance.stores import Stores


@case()
def every_op_over_ranks(create: Stores) -> None:
    kv = create()
    n = kv.num_workers
    product = n**n * math.factorial(n)
    wanted = {"sum": n * total(kv), "avg": total(kv), "max": n * n, "min": n, "prod": product}
    for op in wanted:
        kv.init(op, full(0), op=op)
    for op, want in wanted.items():
        # A multiple of n, so that the average is a whole number.
        kv.push(op, full(n * (kv.rank + 1)))
        same(pulled(kv, op), want)


@case()
def every_op_over_values_and_ranks(create: Stores) -> None:
    kv = create()
    n = kv.num_workers
    wanted = {"sum": 4 * n * total(kv), "avg": 4 * total(kv), "max": 3 * n * n, "min": -n * n}
    wanted["prod"] = math.prod(-6 * (n * (rank + 1)) ** 3 for rank in range(n))
    for op, want in wanted.items():
        kv.init(op, full(0, dtype=np.float64), op=op)
        mine = n * (kv.rank + 1)
        kv.push(op, [full(mine * factor, dtype=np.float64) for factor in (2, 3, -1)])
        same(kv.pull(op), want)


@case()
def repeats_in_a_list_are_combined_by_the_op(create: Stores) -> None:
    kv = create()
    kv.init("most", full(0), op="max")
    kv.init("least", full(0), op="min")
    kv.init("all", full(0), op="prod")
    pairs = [("most", 5), ("least", 5), ("most", 9), ("least", -kv.rank), ("most", kv.rank)]
    pairs += [("all", 2), ("all", -1)]
    kv.push([key for key, _ in pairs], [full(value) for _, value in pairs])
    same(pulled(kv, "most"), 9)
    same(pulled(kv, "least"), 1 - kv.num_workers)
    same(pulled(kv, "all"), (-2) ** kv.num_workers)


@case()
def integer_averages_go_toward_zero(create: Stores) -> None:
    kv = create()
    n = kv.num_workers
    for dtype in (np.int8, np.int32, np.int64):
        key = np.dtype(dtype).name
        kv.init(key, full(0, (4,), dtype), op="avg")
        # One rank alone is not a multiple of n: 7 and -7 over 1 to 4 ranks.
        mine = [7, -7, 1, -1] if kv.rank == 0 else [0, 0, 0, 0]
        kv.push(key, np.array(mine, dtype))
        want = [7 // n, -(7 // n), 1 // n, -(1 // n)]
        same(pulled(kv, key, full(0, (4,), dtype)), want)


NARROW = [np.dtype(f"{kind}{bits}") for kind in ("int", "uint") for bits in (8, 16, 32)]
"""Dtypes of integers in which the sum of a few of the largest wraps."""


def extremes(rank: int, dtype: np.dtype[Any], length: int) -> np.ndarray:
    """Return a rank's largest and smallest integers, over and over."""
    limits = np.iinfo(dtype)
    ends = limits.max if rank == 0 else limits.min
    some = [limits.max, limits.min, limits.max - rank, limits.min + 3 * rank, ends, rank]
    return np.resize(np.array(some, dtype), length)


def exact_average(parts: list[np.ndarray]) -> np.ndarray:
    """Return the average of integers, toward zero, from Python's own integers."""
    sums = (sum(map(int, each)) for each in zip(*(part[:6] for part in parts), strict=True))
    exact = [abs(total) // len(parts) * (1 if total >= 0 else -1) for total in sums]
    return np.resize(np.array(exact, parts[0].dtype), len(parts[0]))


@case()
def averages_of_narrow_integers_do_not_wrap(create: Stores) -> None:
    kv = create()
    dtypes = [each for each in NARROW if not current_buffers().capabilities.refused(each, "avg")]
    for dtype in dtypes:
        for length in (6, 30_000):  # a short sum, and several chunks
            key = f"{dtype} {length}"
            kv.init(key, full(0, (length,), dtype), op="avg")
            want = exact_average([extremes(rank, dtype, length) for rank in range(kv.num_workers)])
            mine = current_buffers().put(extremes(kv.rank, dtype, length))
            kv.push(key, mine)
            same(kv.pull(key), want)
            same(kv.allreduce(mine, "avg"), want)


@case()
def averages_of_fewer_ranks_do_not_wrap(create: Stores) -> None:
    for resting in range(create().num_workers):
        kv = create()
        for dtype in ("int8", "uint32", "float16"):
            kv.init(dtype, full(0, (2000,), dtype), op="avg")
        with kv.uneven():
            if kv.rank >= resting:
                kv.push("int8", full(-127, (2000,), np.int8))
                kv.push("uint32", full(2**32 - 1, (2000,), np.uint32))
                kv.push("float16", full(60_000, (2000,), np.float16))
                kv.wait()
        same(kv.pull("int8"), -127)
        same(kv.pull("uint32"), 2**32 - 1)
        same(kv.pull("float16"), 60_000)


@case()
def ops_and_a_function_as_updater(create: Stores) -> None:
    kv = create()
    kv.init("avg", full(1), op="avg")
    kv.init("max", full(1), op="max")
    kv.set_updater(lambda key, grad, stored: np.add(stored, grad, out=stored))
    kv.push(["avg", "max"], [full(2 * kv.num_workers), full(kv.rank + 1)])
    same(pulled(kv, "avg"), 1 + 2 * kv.num_workers)
    same(pulled(kv, "max"), 1 + kv.num_workers)


@case()
def integers_wrap(create: Stores) -> None:
    kv = create()
    for dtype, big in ((np.uint8, 200), (np.int8, 100), (np.int32, 2**31 - 1)):
        key = np.dtype(dtype).name
        kv.init(key, full(0, (3,), dtype))
        kv.push(key, [full(big, (3,), dtype), full(big, (3,), dtype)])
        want = np.array(2 * big * kv.num_workers).astype(dtype)
        same(pulled(kv, key, full(0, (3,), dtype)), want)
        kv.init(f"{key} product", full(0, (3,), dtype), op="prod")
        kv.push(f"{key} product", [full(big, (3,), dtype), full(big, (3,), dtype)])
        want = np.array(big ** (2 * kv.num_workers) % 2**64, np.uint64).astype(dtype)
        same(pulled(kv, f"{key} product", full(0, (3,), dtype)), want)


@case()
def bool_sums_are_logical_or_and_products_logical_and(create: Stores) -> None:
    kv = create()
    mine = np.array([False, True, kv.rank == 0, kv.rank == kv.num_workers - 1])
    for op in ("sum", "max", "min", "prod"):
        kv.init(op, np.zeros(4, bool), op=op)
        kv.push(op, [mine, mine])
    one = kv.num_workers == 1
    some = [False, True, True, True]
    every = [False, True, one, one]
    for op, want in {"sum": some, "max": some, "min": every, "prod": every}.items():
        same(pulled(kv, op, np.zeros(4, bool)), want)


@case()
def half_precision_is_summed_in_float32(create: Stores) -> None:
    kv = create()
    kv.init("h", full(0, (3,), np.float16))
    # Added one by one in float16 this is 2048: 2048 + 1 has no float16 of its own.
    kv.push("h", [full(value, (3,), np.float16) for value in (2048, 1, 1)])
    want = np.float16(2050 * kv.num_workers)
    same(pulled(kv, "h", full(0, (3,), np.float16)), want)


@case()
def half_precision_over_ranks_is_rounded_once(create: Stores) -> None:
    kv = create()
    kv.init("h", full(0, (3,), np.float16))
    kv.push("h", full(2048 if kv.rank == 0 else 1, (3,), np.float16))
    want = np.float16(np.float32(2048 + kv.num_workers - 1))
    same(pulled(kv, "h", full(0, (3,), np.float16)), want)


@case(needs="ml_dtypes")
def products_of_16_bit_floats_are_made_in_float32(create: Stores) -> None:
    from ml_dtypes import bfloat16

    kv = create()
    last = kv.num_workers - 1
    # In float16 the first product is infinite, in bfloat16 129 * 129 is rounded.
    for dtype, values in (np.float16, (1024, 128, 0.125)), (bfloat16, (129, 129, 129)):
        key = np.dtype(dtype).name
        kv.init(key, full(0, dtype=dtype), op="prod")
        one_rank = [full(value, dtype=dtype) for value in values]
        kv.push(key, one_rank if kv.rank == last else full(1, dtype=dtype))
        want = np.float32(dtype(np.prod(values, dtype=np.float32)))
        same(kv.pull(key).astype(np.float32), want)


@case()
def overflow_infinity_and_nan_follow_ieee(create: Stores) -> None:
    kv = create()
    kv.init("half", full(0, (2,), np.float16))
    kv.push("half", [full(60000, (2,), np.float16), full(60000, (2,), np.float16)])
    same(pulled(kv, "half", full(0, (2,), np.float16)), np.inf)
    first = kv.rank == 0
    mine = np.array([np.nan if first else 1, np.inf if first else 1, -np.inf], np.float32)
    for op in ("sum", "max", "min", "prod"):
        kv.init(op, full(0, (3,)), op=op)
        kv.push(op, mine)
    least = np.inf if kv.num_workers == 1 else 1
    same(pulled(kv, "sum", mine), [np.nan, np.inf, -np.inf])
    same(pulled(kv, "prod", mine), [np.nan, np.inf, np.inf * (-1) ** kv.num_workers])
    extremes = {"max": [np.nan, np.inf, -np.inf], "min": [np.nan, least, -np.inf]}
    for op, want in extremes.items():
        got = pulled(kv, op, mine)
        same(got[1:], want[1:])
        if current_buffers().capabilities.nan_wins or kv.num_workers == 1:
            same(got[:1], np.nan)
        else:
            # NCCL's fmaxf and fminf drop a NaN where another rank has a number.
            assert np.isnan(got[0]) or got[0] == 1


@case()
def the_same_bits_every_time(create: Stores) -> None:
    kv = create()
    kv.init("r", full(0, (1000,)))
    draw = np.random.default_rng(kv.rank)
    values = [draw.standard_normal(1000).astype(np.float32) for _ in range(5)]
    kv.push("r", values)
    first = pulled(kv, "r", full(0, (1000,)))
    for _ in range(3):
        kv.push("r", values)
        same(pulled(kv, "r", full(0, (1000,))), first)


@case()
def unknown_ops_are_refused(create: Stores) -> None:
    kv = probed(create)
    for wrong in ("mean", "product", "", "SUM!", None, 3):
        with refused(kv, UsageError, "init", repr(wrong), "sum", "avg", "max", "min", "prod"):
            kv.init(7, full(0), op=wrong)
    intact(kv)


@case()
def complex_numbers_are_only_added(create: Stores) -> None:
    kv = probed(create)
    for op, why in ("max", "no order"), ("min", "no order"), ("prod", "real numbers"):
        with refused(kv, NotSupported, "init of key 7", op, "complex64", why, "sum"):
            kv.init(7, full(0, dtype=np.complex64), op=op)
    intact(kv)


@case()
def complex_sums_and_averages(create: Stores) -> None:
    kv = create()
    n: int = kv.num_workers
    for dtype in (np.complex64, np.complex128):
        wanted: dict[str, Any] = {"sum": n * total(kv) * (1 - 2j), "avg": total(kv) * (1 - 2j)}
        for op, want in wanted.items():
            key, like = f"{np.dtype(dtype).name} {op}", full(0, dtype=dtype)
            kv.init(key, like, op=op)
            kv.push(key, full(n * (kv.rank + 1) * (1 - 2j), dtype=dtype))
            same(pulled(kv, key, like), want)
