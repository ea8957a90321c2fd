"""`create(..., reproducible=True)`: the bits of NumPy's sum in rank order, rank 0's array first.

The numbers give other bits in any other order of more than two of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

import ncclkv.optimizer as optimizer
from tests.conformance.capabilities import current_buffers
from tests.conformance.expect import full
from tests.conformance.registry import SEVERAL, case
from tests.conformance.stores import Stores

Array = NDArray[Any]

SIZES = {"one": 1, "few": 7, "short": 900, "longer": 5_000, "long": 70_001}
"""Elements by key: gathered whole, or in shares, alone or with others."""

VERY_LONG = 3 * 2**20 + 5
"""Elements of more than one message between nodes."""

PERIOD = 9973

BUCKETS = (0, 4096, 25 * 2**20)


def pushed(rank: int, key: str, dtype: Any = np.float32, step: int = 0) -> Array:
    """Return a rank's gradient: its period, repeated to the length of the key."""
    return np.resize(period(rank, key, dtype, step), SIZES.get(key, VERY_LONG))


@cache
def period(rank: int, key: str, dtype: Any, step: int) -> Array:
    """Return the numbers that repeat: small and large ones of both signs, which cancel.

    Their number is prime, so that no cut between slices falls on a period.
    """
    count = SIZES.get(key, VERY_LONG)
    length = min(count, PERIOD)
    rng = np.random.default_rng([rank, step, count])
    numbers = rng.standard_normal(length) * 10.0 ** rng.integers(-4, 5, length)
    # 1e8, 1 and -1e8, at ranks that differ from element to element; 16-bit floats have no 1e8.
    high = 1e8 if np.dtype(dtype).itemsize > 2 else 3e4
    turn = (np.arange(length) + rank) % 4
    numbers[::2] = np.select([turn == 0, turn == 1, turn == 2], [high, 1.0, -high], 0.3)[::2]
    return numbers.astype(dtype)


def summed(kv: Any, key: str, dtype: Any = np.float32, op: str = "sum", step: int = 0) -> Array:
    """Return all ranks' gradients, added one after another."""
    parts = [period(rank, key, dtype, step) for rank in range(kv.num_workers)]
    total = in_order(parts)
    if total.size > 100 and kv.num_workers > 2:
        assert (in_order(parts[::-1]) != total).any()
        assert (in_order([in_order(parts[:1]), in_order(parts[1:])]) != total).any()
    if op == "avg":
        total = total / total.dtype.type(kv.num_workers)
    return np.resize(total.astype(dtype), SIZES.get(key, VERY_LONG))


def in_order(parts: list[Array]) -> Array:
    """Return the sum, in float32 for 16-bit floats, not rounded."""
    wide = np.float32 if parts[0].dtype.itemsize == 2 else parts[0].dtype
    total = parts[0].astype(wide)
    for part in parts[1:]:
        total = total + part.astype(wide)
    return total


def bits(got: Any, wanted: Array, what: str) -> None:
    """Fail unless two arrays are the same bits."""
    array = np.asarray(current_buffers().get(got))
    assert (array.dtype, array.shape) == (wanted.dtype, wanted.shape)
    # As integers: a copy of the bytes of a long array takes longer than all else.
    integers = f"u{array.itemsize}"
    differ = array.view(integers) != wanted.view(integers)
    assert not differ.any(), f"{what}: {differ.sum()} differ"


def push_all(kv: Any, dtype: Any, step: int = 0) -> None:
    """Push this rank's numbers of all keys."""
    kv.push(list(SIZES), [pushed(kv.rank, key, dtype, step) for key in SIZES])


def check(create: Stores, dtype: Any, op: str = "sum", buckets: Sequence[int] = (4096,)) -> None:
    """Check sums of one dtype in all buckets, twice: the second time from the cache."""
    for bucket_bytes in buckets:
        kv = create(reproducible=True, bucket_bytes=bucket_bytes)
        kv.init(list(SIZES), [full(0, (n,), dtype) for n in SIZES.values()], op=op)
        for step in range(2):
            push_all(kv, dtype, step)
            for key, got in zip(SIZES, kv.pull(list(SIZES)), strict=True):
                what = f"{key} of {np.dtype(dtype).name}, buckets of {bucket_bytes}, step {step}"
                bits(got, summed(kv, key, dtype, op, step), what)


@case()
def float32_is_summed_in_rank_order(create: Stores) -> None:
    check(create, np.float32, buckets=BUCKETS)


@case(sizes=SEVERAL)
def averages_are_sums_that_are_divided(create: Stores) -> None:
    check(create, np.float64, "avg")
    check(create, np.float16, "avg")


@case(sizes=SEVERAL, needs="ml_dtypes")
def sixteen_bits_are_rounded_once(create: Stores) -> None:
    from ml_dtypes import bfloat16

    check(create, np.float16)
    check(create, bfloat16)


@case()
def integers_wrap_and_bools_are_or_ed(create: Stores) -> None:
    kv = create(reproducible=True)
    kv.init("i", full(0, (40_000,), np.int32))
    kv.init("b", full(0, (40_000,), np.bool_))
    kv.init("c", full(0, (40_000,), np.complex64))
    ranks = np.arange(40_000) % kv.num_workers
    kv.push(
        ["i", "b", "c"],
        [
            full(2**30 + kv.rank, (40_000,), np.int32),
            (ranks == kv.rank) & (np.arange(40_000) % 3 == 0),
            full(kv.rank + 1j, (40_000,), np.complex64),
        ],
    )
    n = kv.num_workers
    whole = full(n * 2**30 + n * (n - 1) // 2, (40_000,), np.int64).astype(np.int32)
    bits(kv.pull("i"), whole, "int32")
    bits(kv.pull("b"), np.arange(40_000) % 3 == 0, "bool")
    bits(kv.pull("c"), full(n * (n - 1) // 2 + n * 1j, (40_000,), np.complex64), "complex64")


@case(sizes=SEVERAL)
def an_optimizer_steps_along_the_same_sums(create: Stores) -> None:
    for bucket_bytes in BUCKETS[:2]:
        kv = create(reproducible=True, bucket_bytes=bucket_bytes)
        kv.init(list(SIZES), [full(1, (n,)) for n in SIZES.values()])
        kv.set_optimizer(optimizer.SGD(learning_rate=0.1, momentum=0.9))
        model = {key: (full(1, (n,)), full(0, (n,))) for key, n in SIZES.items()}
        for step in range(3):
            push_all(kv, np.float32, step)
            for key, (weights, momenta) in model.items():
                gradients = summed(kv, key, step=step)
                momenta = momenta * np.float32(0.9) - gradients * np.float32(0.1)
                model[key] = weights + momenta, momenta
            for key, got in zip(SIZES, kv.pull(list(SIZES)), strict=True):
                bits(got, model[key][0], f"{key}, buckets of {bucket_bytes}, step {step}")


@case()
def a_function_gets_the_same_sums(create: Stores) -> None:
    kv = create(reproducible=True)
    kv.init(list(SIZES), [full(0, (n,)) for n in SIZES.values()])
    kv.set_updater(lambda key, sums, stored: current_buffers().copy(sums, stored))
    push_all(kv, np.float32)
    for key, got in zip(SIZES, kv.pull(list(SIZES)), strict=True):
        bits(got, summed(kv, key), key)


@case(sizes=SEVERAL)
def many_pieces_are_one_sum(create: Stores) -> None:
    kv = create(reproducible=True)
    kv.init("very long", full(0, (VERY_LONG,)))
    for step in range(2):
        kv.push("very long", pushed(kv.rank, "very long", step=step))
        bits(kv.pull("very long"), summed(kv, "very long", step=step), f"step {step}")
