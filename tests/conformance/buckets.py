"""Programs give the same numbers however keys are laid out in buckets."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ncclkv.errors import UsageError
from tests.conformance.expect import check_words, full, pulled, same, total
from tests.conformance.registry import case
from tests.conformance.stores import Stores

SIZES = (0, 64, 4096, 1 << 20)


@case()
def the_same_numbers_for_every_bucket_size(create: Stores) -> None:
    shapes: list[tuple[int, ...]] = [(1,), (7, 3), (), (0,), (100,), (33, 65), (2, 3)]
    keys = list(range(len(shapes)))
    for nbytes in SIZES:
        kv = create(bucket_bytes=nbytes)
        kv.init(keys, [full(0, shape) for shape in shapes])
        kv.push(
            keys, [full(key + kv.rank + 1, shape) for key, shape in zip(keys, shapes, strict=True)]
        )
        kv.push(2, full(50 * (kv.rank + 1), ()))
        for key, shape in zip(keys, shapes, strict=True):
            want = 50 * total(kv) if key == 2 else key * kv.num_workers + total(kv)
            same(pulled(kv, key, full(0, shape)), full(want, shape))


@case()
def whole_lists_between_sublists(create: Stores) -> None:
    kv = create()
    kv.init(["a", "b"], [full(2), full(4)])
    values = [full(0), full(0)]
    for step in range(1, 4):
        values[0][:], values[1][:] = step * (kv.rank + 1), 10 * step * (kv.rank + 1)
        kv.push("a", full(99))
        kv.push(["a", "b"], values)
        values[0][:] = values[1][:] = -1
        if create.updates_here(kv, "a"):
            same(kv.pull("a", local=True), step * total(kv))
        same(pulled(kv, "b"), 10 * step * total(kv))
        same(pulled(kv, "a"), step * total(kv))
        kv.push("b", full(1))
        same(kv.pull("b", local=True), 10 * step * total(kv))
        same(kv.value("b"), 10 * step * total(kv))
        same(pulled(kv, "b"), kv.num_workers)


@case()
def whole_lists_of_every_kind_of_values(create: Stores) -> None:
    for op in ("sum", "avg", "max", "min", "prod"):
        kv = create()
        kv.init(["a", "b", "c"], [full(7), full(7, (4, 2)), full(7, (5,))], op=op)
        for factor in (1, 2, 3):
            own = factor * (kv.rank + 1)
            row = np.full((2, 4), own, np.float32).T
            kv.push(["c", "a", "b"], [full(own, (5,)), [full(own), full(own)], row])
            most = factor * kv.num_workers
            whole = {"sum": factor * total(kv), "avg": factor * total(kv) / kv.num_workers}
            product = factor**kv.num_workers * math.factorial(kv.num_workers)
            want = {**whole, "max": most, "min": factor, "prod": product}[op]
            twice = want**2 if op == "prod" else 2 * want if op in whole else want
            same(pulled(kv, "a"), twice)
            same(pulled(kv, "b", full(0, (4, 2))), want)
            same(pulled(kv, "c", full(0, (5,))), want)


@case()
def updaters_for_every_bucket_size(create: Stores) -> None:
    def add(key: Any, grad: NDArray[Any], stored: NDArray[Any]) -> None:
        stored += grad

    for nbytes in SIZES:
        kv = create(bucket_bytes=nbytes)
        kv.init(["a", "b", "c"], [full(1, (9,)), full(2, (99,)), full(3, (999,))])
        kv.set_updater(add)
        kv.push(["c", "a"], [full(kv.rank + 1, (999,)), full(1, (9,))])
        same(pulled(kv, "a", full(0, (9,))), 1 + kv.num_workers)
        same(pulled(kv, "b", full(0, (99,))), 2)
        same(pulled(kv, "c", full(0, (999,))), 3 + total(kv))


@case()
def keys_of_several_dtypes_and_ops_pushed_together(create: Stores) -> None:
    kv = create()
    kinds: list[tuple[Any, str]] = [
        (dtype, op)
        for dtype in (np.float32, np.float64, np.int32, np.float16)
        for op in ("sum", "max", "min", "prod")
    ]
    keys = [f"{np.dtype(dtype).name}-{op}" for dtype, op in kinds]
    for key, (dtype, op) in zip(keys, kinds, strict=True):
        kv.init(key, full(0, (5,), dtype), op=op)
    kv.push(keys, [full(kv.rank + 1, (5,), dtype) for dtype, _ in kinds])
    wanted = {"sum": total(kv), "max": kv.num_workers, "min": 1}
    wanted["prod"] = math.factorial(kv.num_workers)
    for key, (dtype, op) in zip(keys, kinds, strict=True):
        same(pulled(kv, key, full(0, (5,), dtype)), wanted[op])


@case()
def a_few_keys_of_many(create: Stores) -> None:
    kv = create(bucket_bytes=2048)
    kv.init(list(range(60)), [full(key, (11,)) for key in range(60)])
    kv.push([7, 41, 59], [full(kv.rank + 1, (11,))] * 3)
    kv.push(41, full(5, (11,)))
    outs = [full(-1, (11,)) for _ in range(60)]
    kv.pull(list(range(60)), out=outs)
    changed = {7: total(kv), 41: 5 * kv.num_workers, 59: total(kv)}
    for key, out in enumerate(outs):
        same(out, changed.get(key, key))


@case()
def keys_in_the_reverse_of_their_order(create: Stores) -> None:
    kv = create(bucket_bytes=1024)
    kv.init(list(range(30)), [full(0, (40,))] * 30)
    for _ in range(2):
        for key in reversed(range(30)):
            kv.push(key, full(key * (kv.rank + 1), (40,)))
        for key in (29, 0, 15, *range(30)):
            same(pulled(kv, key, full(0, (40,))), key * total(kv))


@case()
def invalid_bucket_sizes(create: Stores) -> None:
    for wrong in (-1, 1.5, "25 MiB", "AUTO", "", None, True):
        with pytest.raises(UsageError, match="bucket_bytes") as caught:
            create(bucket_bytes=wrong)
        check_words(caught.value, repr(wrong), "an int of 0 or more", "'auto'")
