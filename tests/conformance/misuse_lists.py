"""Lists of keys and values that do not match; a wrong call changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ncclkv.errors import UsageError
from tests.conformance.expect import full, intact, probed, refused, same
from tests.conformance.registry import case
from tests.conformance.stores import Stores


@case()
def lengths_that_differ(create: Stores) -> None:
    kv = probed(create)
    three = [full(100), full(100), full(100)]
    calls: list[Callable[[], Any]] = [
        lambda: kv.push([3, 5], three),
        lambda: kv.pull([3, 5], out=three),
        lambda: kv.pushpull([3, 5], three),
        lambda: kv.pushpull([3, 5], three[:2], out=three),
        lambda: kv.reset([3, 5], three),
        lambda: kv.init([7, 8], three),
        lambda: kv.broadcast([7, 8], three, three[:2]),
        lambda: kv.broadcast([7, 8], three[:2], three),
    ]
    for call in calls:
        with refused(kv, UsageError, "2 keys", "3"):
            call()
    for value in three:
        same(value, 100)
    intact(kv)


@case()
def one_array_for_a_list_of_keys(create: Stores) -> None:
    kv = probed(create)
    single = full(100)
    calls: list[Callable[[], Any]] = [
        lambda: kv.push([3, 5], single),
        lambda: kv.pull([3, 5], out=single),
        lambda: kv.pushpull([3, 5], single),
        lambda: kv.init([7, 8], single),
    ]
    for call in calls:
        with refused(kv, UsageError, "2 keys", "list"):
            call()
    same(single, 100)
    intact(kv)


@case()
def no_value_for_a_key(create: Stores) -> None:
    kv = probed(create)
    calls: list[Callable[[], Any]] = [
        lambda: kv.push(3, []),
        lambda: kv.push([5, 3], [full(100), []]),
        lambda: kv.pull(3, out=[]),
        lambda: kv.pushpull(3, [], out=full(0)),
        lambda: kv.pushpull(3, full(100), out=[]),
    ]
    for call in calls:
        with refused(kv, UsageError, "3", "empty"):
            call()
    intact(kv)


@case()
def several_values_in_place_of_one(create: Stores) -> None:
    kv = probed(create)
    pair = [full(100), full(100)]
    calls: list[tuple[str, Callable[[], Any]]] = [
        ("7", lambda: kv.init(7, pair)),
        ("7", lambda: kv.init([7, 8], [pair, full(0)])),
        ("3", lambda: kv.reset(3, pair)),
        ("7", lambda: kv.broadcast(7, pair, full(0))),
    ]
    for key, call in calls:
        with refused(kv, UsageError, key, "one"):
            call()
    intact(kv)


@case()
def lists_in_lists_in_lists(create: Stores) -> None:
    kv = probed(create)
    with refused(kv, UsageError, "3", "list"):
        kv.push(3, [[full(100)], [full(100)]])
    with refused(kv, UsageError, "3", "list"):
        kv.push([3, 5], [[[full(100)]], full(100)])
    with refused(kv, UsageError, "3", "list"):
        kv.pull(3, out=[[full(0)]])
    intact(kv)


@case()
def the_last_item_wrong(create: Stores) -> None:
    kv = probed(create)
    kv.set_updater(lambda key, grad, stored: stored.__iadd__(grad))
    values, outs = [full(100), full(100)], [full(-1), full(-1, (9,))]
    with refused(kv, UsageError, "5"):
        kv.push([3, 5], [full(100), full(100, (9,))])
    with refused(kv, UsageError, "5"):
        kv.pull([3, 5], out=outs)
    with refused(kv, UsageError, "5"):
        kv.pushpull([3, 5], values, out=outs)
    with refused(kv, UsageError, "8"):
        kv.init([7, 8], [full(100), "text"])
    with refused(kv, UsageError, "8"):
        kv.broadcast([3, 8], [full(100), full(100)], [full(-1), "text"])
    same(outs[0], -1)
    same(kv.pull(3), 2)
    same(kv.pull(5), 4)
    assert list(kv.keys()) == [3, 5]
