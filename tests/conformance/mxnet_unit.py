"""MXNet's unit tests of its KVStore (dense part), their numbers times the number of ranks."""

from __future__ import annotations

from typing import Any

from ncclkv.errors import KeyTypeMismatch
from tests.conformance.expect import full, pulled, refused, same
from tests.conformance.registry import case
from tests.conformance.stores import Stores

SQUARE = (4, 4)
INTS: tuple[Any, list[Any]] = (3, [5, 7, 11])
STRINGS: tuple[Any, list[Any]] = ("a", ["b", "c", "d"])


def square(value: float) -> Any:
    return full(value, SQUARE)


def store_of_zeros(create: Stores, single: Any, several: list[Any]) -> Any:
    kv = create()
    kv.init(single, square(0))
    kv.init(several, [square(0)] * len(several))
    return kv


@case()
def single_pair(create: Stores) -> None:
    for single, several in (INTS, STRINGS):
        kv = store_of_zeros(create, single, several)
        kv.push(single, square(1))
        same(pulled(kv, single, square(0)), kv.num_workers)


@case()
def list_of_pairs(create: Stores) -> None:
    for single, several in (INTS, STRINGS):
        kv = store_of_zeros(create, single, several)
        kv.push(several, [square(4)] * 3)
        outs = [square(-1) for _ in several]
        kv.pull(several, out=outs)
        for out in outs:
            same(out, 4 * kv.num_workers)


@case()
def init_keeps_its_value(create: Stores) -> None:
    for single, _ in (INTS, STRINGS):
        kv = create()
        kv.init(single, square(4))
        same(pulled(kv, single, square(0)), 4)


@case()
def the_same_array_several_times_as_value_and_a_late_init(create: Stores) -> None:
    kv = create()
    kv.init("1", square(0))
    ones = square(1)
    kv.push("1", [ones, ones, ones, ones])
    same(pulled(kv, "1", ones), 4 * kv.num_workers)
    kv.init("2", square(0))
    same(pulled(kv, "2", ones), 0)
    same(pulled(kv, "1", ones), 4 * kv.num_workers)


@case()
def aggregator(create: Stores) -> None:
    for single, several in (INTS, STRINGS):
        kv = store_of_zeros(create, single, several)
        kv.push(single, [square(1) for _ in range(4)])
        outs = [square(0) for _ in range(4)]
        kv.pull(single, out=outs)
        for out in outs:
            same(out, 4 * kv.num_workers)
        kv.push(several, [[square(2) for _ in range(4)] for _ in several])
        lists = [[square(0) for _ in range(4)] for _ in several]
        kv.pull(several, out=lists)
        for out in (out for outs in lists for out in outs):
            same(out, 8 * kv.num_workers)


@case()
def updater_that_adds(create: Stores) -> None:
    for single, several in (INTS, STRINGS):
        seen: list[Any] = []

        def add(key: Any, grad: Any, stored: Any, seen: list[Any] = seen) -> None:
            seen.append(key)
            stored += grad

        kv = store_of_zeros(create, single, several)
        kv._set_updater(add)
        kv.push(single, [square(1) for _ in range(4)])
        same(pulled(kv, single, square(0)), 4 * kv.num_workers)
        for _ in range(4):
            kv.push(several, [[square(1) for _ in range(4)] for _ in several])
        for key in several:
            same(pulled(kv, key, square(0)), 16 * kv.num_workers)
        assert seen == [key for key in (single, *several * 4) if create.updates_here(kv, key)]


@case()
def keys_of_the_other_type(create: Stores) -> None:
    for (single, several), (other, others) in ((INTS, STRINGS), (STRINGS, INTS)):
        kv = store_of_zeros(create, single, several)
        wanted = type(single).__name__
        with refused(kv, KeyTypeMismatch, wanted, type(other).__name__, repr(other)):
            kv.init(other, square(0))
        with refused(kv, KeyTypeMismatch, wanted, repr(other)):
            kv.push(other, square(1))
        with refused(kv, KeyTypeMismatch, wanted, repr(other)):
            kv.pull(other, out=square(1))
        with refused(kv, KeyTypeMismatch, wanted):
            kv.init(others, [square(0)] * 3)
        with refused(kv, KeyTypeMismatch, wanted):
            kv.push(others, [square(0)] * 3)
        with refused(kv, KeyTypeMismatch, wanted):
            kv.pull(others, out=[square(0), square(0), square(0)])
        kv.push(single, square(1))
        same(pulled(kv, single, square(0)), kv.num_workers)


@case()
def custom_broadcast(create: Stores) -> None:
    kv = create()
    out, outs = square(0), [square(0) for _ in range(3)]
    kv.broadcast("0", square(1), out)
    kv.broadcast("1", square(1), outs)
    lists = [[square(0), square(0)] for _ in range(3)]
    kv.broadcast(["b", "c", "d"], [square(1)] * 3, lists)
    for got in [out, *outs, *(item for pair in lists for item in pair)]:
        same(got, 1)


@case()
def custom_pushpull(create: Stores) -> None:
    kv = create()
    kv.broadcast("a", square(1), square(0))
    outs = [square(0) for _ in range(4)]
    kv.pushpull("a", [square(1) for _ in range(4)], out=outs)
    values = [square(1) for _ in range(4)]
    kv.pushpull("a", values)
    for got in [*outs, *values]:
        same(got, 4 * kv.num_workers)


@case()
def custom_pushpull_in_place_with_one_list_for_three_keys(create: Stores) -> None:
    kv = create()
    several = ["b", "c", "d"]
    kv.broadcast(several, [square(1)] * 3, [square(0) for _ in several])
    outs = [[square(0) for _ in range(4)] for _ in several]
    kv.pushpull(several, [[square(2) for _ in range(4)]] * 3, out=outs)
    shared = [square(2) for _ in range(4)]
    kv.pushpull(several, [shared] * 3)
    for got in [*shared, *(out for row in outs for out in row)]:
        same(got, 8 * kv.num_workers)
