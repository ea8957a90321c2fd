"""Any number of stores in one job, each on a communicator of its own."""

from __future__ import annotations

from tests.conformance.expect import full, pulled, same, total
from tests.conformance.registry import SEVERAL, case
from tests.conformance.stores import Stores


@case()
def interleaved_calls(create: Stores) -> None:
    stores = [create() for _ in range(4)]
    for i, kv in enumerate(stores):
        kv.init("w", full(i))
    for i, kv in enumerate(stores):
        kv.push("w", full((i + 1) * (kv.rank + 1)))
    for i, kv in reversed(list(enumerate(stores))):
        same(pulled(kv, "w"), (i + 1) * total(kv))


@case()
def exchanges_of_two_stores_do_not_match_each_other(create: Stores) -> None:
    first, second = create(), create()
    for kv in (first, second):
        kv.init(3, full(0))
    # The exchange of one store must not match that of the other.
    for i in range(5):
        first.push(3, full(i * (first.rank + 1)))
        second.push(3, full(100 * i * (second.rank + 1)))
        same(pulled(second, 3), 100 * i * total(second))
        same(pulled(first, 3), i * total(first))


@case()
def keys_of_another_type_and_shape(create: Stores) -> None:
    numbers, names = create(), create()
    numbers.init(3, full(1))
    names.init("3", full(2, (7,)))
    numbers.push(3, full(1))
    names.push("3", full(2, (7,)))
    same(pulled(names, "3", full(0, (7,))), 2 * names.num_workers)
    same(pulled(numbers, 3), numbers.num_workers)


@case()
def updaters_and_placements_are_apart(create: Stores) -> None:
    plain, every, root = create(), create(update_on="every_rank"), create(update_on="root")
    for kv in (plain, every, root):
        kv.init(3, full(1))
    for kv in (every, root):
        kv.set_updater(lambda key, grad, stored: stored.__iadd__(grad))
    for kv in (plain, every, root):
        kv.push(3, full(kv.rank + 1))
    same(pulled(plain, 3), total(plain))
    same(pulled(every, 3), 1 + total(every))
    same(pulled(root, 3), 1 + total(root))


@case()
def one_store_closed_before_the_others(create: Stores) -> None:
    first, second = create(), create()
    for kv in (first, second):
        kv.init(3, full(0))
    first.push(3, full(1))
    first.close()
    second.push(3, full(second.rank + 1))
    same(pulled(second, 3), total(second))
    third = create()
    third.init(3, full(5))
    same(pulled(third, 3), 5)


@case()
def one_store_after_another(create: Stores) -> None:
    for i in range(20):
        kv = create()
        kv.init("w", full(i))
        kv.push("w", full(i + kv.rank + 1))
        same(pulled(kv, "w"), i * kv.num_workers + total(kv))
        kv.close()


@case(sizes=SEVERAL)
def another_root(create: Stores) -> None:
    kv = create(update_on="root", root=1)
    calls: list[int] = []

    def add(key: int, grad: object, stored: object) -> None:
        calls.append(key)
        stored += grad  # type: ignore[operator]

    kv.init(3, full(2 + kv.rank))
    kv.set_updater(add)
    for i in range(1, 4):
        kv.push(3, full(kv.rank + 1))
        same(pulled(kv, 3), 2 + i * total(kv))
    assert calls == ([3, 3, 3] if kv.rank == 1 else [])
