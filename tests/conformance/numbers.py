"""Python numbers, which stand for arrays of keys without dimensions."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Any

import numpy as np

from ncclkv.errors import DTypeMismatch, ShapeMismatch, SpecMismatch, UsageError
from tests.conformance.expect import full, probed, refused, same, total
from tests.conformance.registry import SEVERAL, case
from tests.conformance.stores import Stores

FIRST: dict[str, tuple[Any, str]] = {
    "bool": (True, "bool"),
    "int": (3, "int64"),
    "float": (2.5, "float64"),
    "complex": (1 + 2j, "complex128"),
}
"""Numbers, and the dtypes of keys that are made of them."""


class Level(IntEnum):
    HIGH = 7


@case()
def a_number_makes_a_key_without_dimensions(create: Stores) -> None:
    kv = create()
    kv.init("array", full(0))
    kv.init(list(FIRST), [number for number, _ in FIRST.values()])
    for key, (number, dtype) in FIRST.items():
        assert (kv.spec(key).shape, kv.spec(key).dtype.name) == ((), dtype)
        got = kv.pull(key)
        assert type(got) is type(kv.pull("array"))
        assert (got.shape, got.dtype.name) == ((), dtype)
        same(got, number)
        same(kv.value(key), number)


@case()
def numbers_are_pushed_reset_and_broadcast(create: Stores) -> None:
    kv = create()
    kv.init("loss", 0.0)
    kv.push("loss", kv.rank + 0.5)
    same(kv.pull("loss"), total(kv) - kv.num_workers / 2)
    kv.push("loss", [kv.rank, 1.5, np.float64(2), True])
    same(kv.pull("loss"), total(kv) + 3.5 * kv.num_workers)
    kv.reset("loss", 7 + kv.rank)
    same(kv.pull("loss"), 7)
    out = np.zeros(())
    kv.broadcast("loss", 9 + kv.rank, out)
    same(out, 9)
    kv.broadcast("new", 5 + kv.rank, out)
    same(out, 5)
    assert kv.spec("new").dtype == np.int64
    kv.pushpull("loss", 1, out=out)
    same(out, kv.num_workers)
    kv.push(["loss", "new"], [[1, 2.5], 4])
    same(kv.pull("loss"), 3.5 * kv.num_workers)
    same(kv.pull("new"), 4 * kv.num_workers)


@case()
def the_same_number_again_is_a_new_push(create: Stores) -> None:
    kv = create()
    kv.init(["a", "b"], [0.0, 0.0])
    kv.set_updater(lambda key, given, stored: np.add(stored, given, out=stored))
    one, numbers = 1.0, [1.0, 2.0]
    for _ in range(3):
        kv.push("a", one)
        kv.push(["a", "b"], numbers)
        numbers[1] += 1
    same(kv.pull("a"), 6 * kv.num_workers)
    same(kv.pull("b"), 9 * kv.num_workers)


@case()
def numbers_in_a_group_and_before_an_optimizer(create: Stores) -> None:
    import ncclkv

    kv = create()
    kv.init("w", 4.0)
    kv.set_optimizer(ncclkv.optimizer.SGD(learning_rate=0.5))
    out = np.zeros(())
    with kv.group():
        kv.push("w", 1)
        kv.push("w", 2.0)
        kv.pull("w", out=out)
    same(out, 4 - 1.5 * kv.num_workers)


@case()
def a_number_is_rounded_to_the_dtype_of_its_key(create: Stores) -> None:
    kv = create()
    numbers: dict[str, tuple[Any, ...]] = {
        "bool": (True,),
        "int32": (-3, True, Level.HIGH),
        "uint8": (255, False),
        "float16": (1.0001, 3, True, 1e6),
        "float32": (0.1, 2**24 + 1, float("inf")),
        "complex64": (0.1 + 2j, 0.5, 3, True),
    }
    for key, given in numbers.items():
        kv.init(key, full(0, (), key), op="sum" if key in ("bool", "complex64") else "max")
        for number in given:
            with np.errstate(over="ignore"):
                want = np.array(number).astype(key)
            kv.push(key, number if kv.rank == 0 or key != "complex64" else 0)
            same(kv.pull(key), want)


@case(needs="ml_dtypes")
def numbers_for_bfloat16(create: Stores) -> None:
    from ml_dtypes import bfloat16

    kv = create()
    kv.init("b", full(0, (), bfloat16), op="max")
    for number in (3, True, 1.5, 257, 2**70):
        kv.push("b", number)
        same(kv.pull("b").astype(np.float32), np.float32(bfloat16(float(number))))


@case()
def numbers_that_a_dtype_does_not_have(create: Stores) -> None:
    kv = probed(create)
    wrong: dict[str, tuple[Any, ...]] = {
        "bool": (1, 0.0, 1j),
        "int64": (1.0, float("nan"), 2j, 2**63, -(2**63) - 1),
        "uint8": (-1, 256, 1.5),
        "float32": (1j, 10**400),
        "complex64": (10**400,),
    }
    kv.reset([3, 5], [full(2), full(4)])
    for number, (dtype, numbers) in enumerate(wrong.items(), start=100):
        kv.init(number, full(1, (), dtype))
        for given in numbers:
            calls: list[Callable[[], Any]] = [
                lambda number=number, given=given: kv.push(number, given),
                lambda number=number, given=given: kv.push([3, number], [full(9), given]),
                lambda number=number, given=given: kv.pushpull(number, given, out=np.zeros(())),
                lambda number=number, given=given: kv.reset(number, given),
                lambda number=number, given=given: kv.broadcast(number, given, np.zeros(())),
            ]
            for call in calls:
                kind = type(given).__name__
                with refused(kv, DTypeMismatch, f"of key {number}", f"Python {kind}", dtype):
                    call()
        same(kv.pull(number), 1)
    with refused(kv, DTypeMismatch, "init of key 7", "Python int", "int64"):
        kv.init(7, 2**63)
    assert 7 not in kv
    same(kv.pull(3), 2)


@case()
def keys_with_dimensions_take_no_numbers(create: Stores) -> None:
    kv = probed(create)
    kv.init(7, full(0, (1,)))
    for key, shape in (3, "(2, 3)"), (7, "(1,)"):
        for given in (1.5, [1.5], [full(1, (1,)) if key == 7 else full(1), 1.5]):
            with refused(
                kv, ShapeMismatch, f"push of key {key}", shape, "a Python float", "asarray"
            ):
                kv.push(key, given)
    same(kv.pull(7), 0)
    same(kv.pull(3), 2)


@case()
def numbers_are_never_written(create: Stores) -> None:
    kv = create()
    kv.init("s", 2.0)
    calls: list[Callable[[], Any]] = [
        lambda: kv.pull("s", out=1.0),
        lambda: kv.pushpull("s", 1.0),
        lambda: kv.pushpull("s", np.ones(()), out=[np.zeros(()), 1.0]),
        lambda: kv.broadcast("s", 1.0, 1.0),
    ]
    for call in calls:
        with refused(kv, UsageError, "'s'", "out is a Python float", "shape ()"):
            call()
    same(kv.pull("s"), 2)


@case()
def numpy_scalars_keep_their_dtype(create: Stores) -> None:
    kv = create()
    # np.float64 is a subclass of Python's float, and np.bool_ of none.
    kv.init(["d", "f", "b"], [np.float64(1), np.float32(1), np.bool_(True)])
    assert [kv.spec(key).dtype.name for key in ("d", "f", "b")] == ["float64", "float32", "bool"]
    with refused(kv, DTypeMismatch, "'f'", "float32", "float64", ".astype"):
        kv.push("f", np.float64(1))


@case(sizes=SEVERAL)
def ranks_agree_on_the_kind_of_a_number(create: Stores) -> None:
    kv = create()
    with refused(kv, SpecMismatch, "int64", "float64"):
        kv.init("s", 1 if kv.rank == 0 else 1.0)
