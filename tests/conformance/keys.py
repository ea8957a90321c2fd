"""Keys: types that are allowed, and a separate value for each key."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.conformance.expect import full, pulled, same, total
from tests.conformance.registry import case
from tests.conformance.stores import Stores


@case()
def strings_of_every_kind(create: Stores) -> None:
    kv = create()
    names = ["", "a", "a\0b", "a\0c", "A", " a", "ключ", "emb/0.weight", "3", "x" * 5000]
    kv.init(names, [full(i) for i in range(len(names))])
    assert list(kv.keys()) == names
    for i, name in enumerate(names):
        assert name in kv
        same(pulled(kv, name), i)
    kv.push(names, [full(i * (kv.rank + 1)) for i in range(len(names))])
    for i, name in enumerate(names):
        same(pulled(kv, name), i * total(kv))


@case()
def integers_of_every_kind(create: Stores) -> None:
    kv = create()
    numbers = [0, -1, 7, 2**31, -(2**40), 10**30]
    kv.init(numbers, [full(i) for i in range(len(numbers))])
    for i, number in enumerate(numbers):
        same(pulled(kv, number), i)
    kv.push(numbers, [full(i + kv.rank + 1) for i in range(len(numbers))])
    for i, number in enumerate(numbers):
        same(pulled(kv, number), i * kv.num_workers + total(kv))


@case()
def numpy_integers_are_integers(create: Stores) -> None:
    kv = create()
    seen: list[Any] = []
    kv.init(np.int64(3), full(2))
    kv.init([np.uint8(5)], [full(4)])
    assert list(kv.keys()) == [3, 5]
    assert np.int16(3) in kv
    kv.set_updater(lambda key, grad, stored: seen.append(key))
    kv.push([np.int32(5), 3], [full(1), full(1)])
    same(pulled(kv, np.uint64(3)), 2)
    wanted = [key for key in (3, 5) if create.updates_here(kv, key)]
    assert seen == wanted
    assert [type(key) for key in seen] == [int] * len(wanted)


@case()
def keys_in_tuples(create: Stores) -> None:
    kv = create()
    kv.init(("a", "b"), (full(1), full(2)))
    kv.push(("a", "b"), (full(kv.rank + 1), (full(1), full(2))))
    outs = (full(0), (full(0), full(0)))
    kv.pull(("a", "b"), out=outs)
    same(outs[0], total(kv))
    for out in outs[1]:
        same(out, 3 * kv.num_workers)


@case()
def empty_lists_do_nothing(create: Stores) -> None:
    kv = create()
    kv.init([], [])
    kv.push([], [])
    kv.pull([], out=[])
    assert kv.pull([]) == []
    assert list(kv.keys()) == []
    kv.init(3, full(2))
    kv.push([], [])
    kv.pushpull([], [])
    same(pulled(kv, 3), 2)


@case()
def a_list_of_one(create: Stores) -> None:
    kv = create()
    kv.init(["a"], [full(2)])
    kv.push(["a"], [full(kv.rank + 1)])
    (given,) = kv.pull(["a"])
    same(given, total(kv))
    kv.push(["a"], [[full(1), full(2)]])
    same(pulled(kv, "a"), 3 * kv.num_workers)
