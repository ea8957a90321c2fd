"""Every dtype a store can hold, and the casts of `pull`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ncclkv.errors import DTypeMismatch, NotSupported
from tests.conformance.capabilities import current_buffers
from tests.conformance.expect import SHAPE, full, intact, probed, pulled, refused, same, total
from tests.conformance.registry import case
from tests.conformance.stores import Stores

DTYPES: tuple[Any, ...] = (
    *(np.int8, np.int16, np.int32, np.int64),
    *(np.uint8, np.uint16, np.uint32, np.uint64),
    *(np.float16, np.float32, np.float64),
    *(np.complex64, np.complex128),
)


def summed() -> list[Any]:
    """Return the dtypes that can be summed here."""
    return [
        dtype
        for dtype in DTYPES
        if not current_buffers().capabilities.refused(np.dtype(dtype), "sum")
    ]


@case()
def sums_in_every_dtype(create: Stores) -> None:
    kv = create()
    for dtype in summed():
        key = np.dtype(dtype).name
        kv.init(key, full(0, dtype=dtype))
        assert kv.spec(key).dtype == dtype
        kv.push(key, [full(kv.rank + 1, dtype=dtype), full(2, dtype=dtype)])
        got = kv.pull(key)
        assert got.dtype == dtype
        same(got, total(kv) + 2 * kv.num_workers)


@case()
def dtypes_that_cannot_be_summed_are_refused_at_init(create: Stores) -> None:
    kv = probed(create)
    for dtype in set(DTYPES) - set(summed()):
        words = current_buffers().capabilities.refused(np.dtype(dtype), "sum")
        with refused(kv, NotSupported, "init of key 7", words):
            kv.init(7, full(0, dtype=dtype))
    intact(kv)


@case()
def updaters_in_every_dtype(create: Stores) -> None:
    kv = create()
    keys = [np.dtype(dtype).name for dtype in summed()]
    kv.init(keys, [full(5, dtype=dtype) for dtype in summed()])
    kv.set_updater(lambda key, grad, stored: np.add(stored, grad, out=stored))
    for _ in range(2):
        kv.push(keys, [full(kv.rank + 1, dtype=dtype) for dtype in summed()])
    for got in kv.pull(keys):
        same(got, 5 + 2 * total(kv))


@case(needs="ml_dtypes")
def bfloat16_is_summed_in_float32(create: Stores) -> None:
    from ml_dtypes import bfloat16

    kv = create()
    kv.init("b", full(0, dtype=bfloat16))
    # bfloat16 has 8 bits: 256 + 1 is 256 there.
    kv.push("b", [full(value, dtype=bfloat16) for value in (256, 1, 1)])
    got = kv.pull("b")
    assert got.dtype == bfloat16
    same(got.astype(np.float32), np.float32(bfloat16(258 * kv.num_workers)))
    out = full(0)
    kv.pull("b", out=out)
    same(out, np.float32(bfloat16(258 * kv.num_workers)))


@case(needs="ml_dtypes")
def bfloat16_ops_and_updater(create: Stores) -> None:
    from ml_dtypes import bfloat16

    kv = create()
    for op in ("max", "min", "avg", "prod"):
        kv.init(op, full(0, dtype=bfloat16), op=op)
    n = kv.num_workers
    mine = full(n * (kv.rank + 1), dtype=bfloat16)
    kv.push(["max", "min", "avg", "prod"], [mine] * 4)
    product = np.float32(bfloat16(n**n * math.factorial(n)))
    for op, want in {"max": n * n, "min": n, "avg": total(kv), "prod": product}.items():
        same(kv.pull(op).astype(np.float32), want)
    kv.set_updater(lambda key, grad, stored: np.add(stored, grad, out=stored))
    kv.push("max", mine)
    same(kv.pull("max").astype(np.float32), 2 * n * n)


@case()
def pull_casts_to_the_dtype_of_out(create: Stores) -> None:
    kv = create()
    kv.init("f", np.array([1.5, -1.5, 2.75], np.float32))
    kv.init("i", np.array([1, -2, 300], np.int64))
    for dtype, want in {
        np.float64: [1.5, -1.5, 2.75],
        np.float16: [1.5, -1.5, 2.75],
        np.int32: [1, -1, 2],
        np.complex64: [1.5, -1.5, 2.75],
    }.items():
        out = np.zeros(3, dtype)
        kv.pull("f", out=out)
        np.testing.assert_array_equal(out, np.array(want, dtype))
    for dtype, want in {np.float32: [1, -2, 300], np.int8: [1, -2, 44]}.items():
        out = np.zeros(3, dtype)
        kv.pull("i", out=out)
        np.testing.assert_array_equal(out, np.array(want, dtype))


@case()
def outs_of_one_pull_may_differ_in_dtype(create: Stores) -> None:
    kv = probed(create)
    single, double, half = full(0), full(0, dtype=np.float64), full(0, dtype=np.float16)
    kv.pull(3, out=[single, double, half])
    for out in (single, double, half):
        same(out, 2)
    intact(kv)


@case()
def pull_never_drops_an_imaginary_part(create: Stores) -> None:
    kv = create()
    kv.init("c", full(1 + 2j, dtype=np.complex64))
    out = full(7)
    with refused(kv, DTypeMismatch, "'c'", "complex64", "float32"):
        kv.pull("c", out=out)
    same(out, 7)
    same(kv.pull("c"), 1 + 2j)


@case()
def push_of_another_dtype(create: Stores) -> None:
    kv = probed(create)
    for dtype in (np.float64, np.float16, np.int32, np.complex64, bool):
        name = np.dtype(dtype).name
        with refused(kv, DTypeMismatch, "3", "float32", name, ".astype"):
            kv.push(3, full(1, dtype=dtype))
        with refused(kv, DTypeMismatch, "3", "float32", name, ".astype"):
            kv.push(3, [full(1), full(1, dtype=dtype)])
        with refused(kv, DTypeMismatch, "3", "float32", name, ".astype"):
            kv.pushpull(3, full(1, dtype=dtype), out=full(0))
        with refused(kv, DTypeMismatch, "3", "float32", name, ".astype"):
            kv.reset(3, full(1, dtype=dtype))
    intact(kv)


@case()
def the_other_byte_order_is_the_same_dtype(create: Stores) -> None:
    kv = create()
    swapped = np.dtype(np.float32).newbyteorder()
    kv.init("s", np.arange(6, dtype=swapped).reshape(2, 3))
    assert kv.spec("s").dtype == np.float32
    same(pulled(kv, "s"), np.arange(6).reshape(2, 3))
    kv.push("s", full(kv.rank + 1, dtype=swapped))
    out = full(0, dtype=swapped)
    kv.pull("s", out=out)
    same(out, total(kv))


@case()
def dtypes_that_no_store_holds(create: Stores) -> None:
    kv = probed(create)
    wrong: list[tuple[Any, str]] = [
        (np.full(SHAPE, "a"), "<U1"),
        (np.full(SHAPE, None), "object"),
        (np.zeros(SHAPE, "M8[s]"), "datetime64"),
        (np.zeros(SHAPE, [("x", "f4")]), "x"),
        (np.zeros(SHAPE, np.longdouble), np.dtype(np.longdouble).name),
    ]
    for value, name in wrong:
        with refused(kv, DTypeMismatch, "7", name, "float32", "int64"):
            kv.init(7, value)
        with refused(kv, DTypeMismatch, "3", name):
            kv.push(3, value)
    intact(kv)
