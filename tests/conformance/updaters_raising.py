"""Functions as updaters that raise, and the errors on other ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from numpy.typing import NDArray

import ncclkv
from ncclkv.errors import RankLost, UpdaterError, UsageError
from tests.conformance.expect import check_words, full, pulled, refused, same
from tests.conformance.registry import case
from tests.conformance.stores import Stores
from tests.conformance.updaters import Log


@case()
def an_error_of_another_store_leaves_this_one_whole(create: Stores) -> None:
    kv = create()
    kv.init(3, full(1))

    def fail(key: Any, grad: NDArray[Any], stored: NDArray[Any]) -> None:
        raise RankLost("rank 7 of 8: of another store")

    kv.set_updater(fail)
    for _ in range(2):
        try:
            kv.push(3, full(1))
        except RankLost:
            assert create.updates_here(kv, 3)
        else:
            assert not create.updates_here(kv, 3)
    if not create.updates_here(kv, 3):
        with refused(kv, UpdaterError, "RankLost: rank 7 of 8: of another store, at key 3"):
            kv.wait()
    else:
        kv.wait()
    same(pulled(kv, 3), 1)


def failing(key: Any, grad: NDArray[Any], stored: NDArray[Any]) -> None:
    """An updater that adds, and raises at key 5."""
    if key == 5:
        raise ValueError("no five")
    stored += grad


@contextmanager
def five_fails(create: Stores, kv: Any, *, told: bool) -> Iterator[None]:
    """Expect the error of `failing` where it runs; its report on others, if `told`."""
    if create.updates_here(kv, 5):
        with pytest.raises(ValueError, match="no five") as caught:
            yield
        check_words(caught.value, f"in the updater, at key 5 on rank {kv.rank}")
    elif told:
        owner = create.owner(kv, 5)
        text = f"the updater raised ValueError: no five, at key 5, on rank {owner}"
        with refused(kv, UpdaterError, text, f"all ranks have the values of rank {owner}"):
            yield
    else:
        yield


@contextmanager
def raised_on_other_ranks(create: Stores, kv: Any) -> Iterator[None]:
    """Expect the report of `failing` on the ranks where it does not run."""
    if create.updates_here(kv, 5):
        yield
    else:
        with refused(kv, UpdaterError, f"no five, at key 5, on rank {create.owner(kv, 5)}"):
            yield


@case()
def an_error_on_the_root_is_raised_on_all_by_the_next_flush(create: Stores) -> None:
    kv = create()
    kv.init([3, 5, 7], [full(1)] * 3)
    kv.set_updater(failing)
    reads: list[Callable[[], object]] = [
        kv.wait,
        kv.barrier,
        lambda: kv.pull(3, out=full(0)),
        lambda: kv.pull(3),
        lambda: kv.wait(7),
        lambda: kv.broadcast(3, full(0), out=full(0)),
    ]
    for number, read in enumerate(reads):
        with five_fails(create, kv, told=False):
            kv.push([3, 5, 7], [full(1)] * 3)
        with raised_on_other_ranks(create, kv):
            read()
        done, n = number + 1, kv.num_workers
        if number < 5:
            same(pulled(kv, 3), 1 + done * kv.num_workers)
        # The update ended at 5 on the owner of 5; an error is raised once.
        same(pulled(kv, 5), 1)
        same(pulled(kv, 7), 1 if create.owner(kv, 7) == create.owner(kv, 5) else 1 + done * n)
    kv.wait()


@case()
def an_error_on_the_root_is_raised_on_all_by_a_call_that_reads(create: Stores) -> None:
    kv = create()
    kv.init([3, 5], [full(1)] * 2)
    kv.set_updater(failing)
    outs = [full(0), full(0)]
    with five_fails(create, kv, told=True):
        kv.pushpull([3, 5], [full(1)] * 2, out=outs)
    same(outs[0], 1 + kv.num_workers)
    same(outs[1], 1)
    with five_fails(create, kv, told=True):  # noqa: SIM117
        with kv.group():
            kv.push([3, 5], [full(1)] * 2)
            kv.pull(3, out=outs[0])
    same(outs[0], 1 + 2 * kv.num_workers)


@case()
def an_error_on_the_root_is_raised_on_all_after_an_exchange(create: Stores) -> None:
    for options in {"missing": "zeros"}, {"nonfinite": "raise"}:
        kv = create(**options)
        kv.init([3, 5], [full(1)] * 2)
        kv.set_updater(failing)
        if "missing" in options:  # the updater runs in the flush then, not in the push
            kv.push([3, 5], [full(1)] * 2)
        with five_fails(create, kv, told=False):
            kv.wait() if "missing" in options else kv.push([3, 5], [full(1)] * 2)
        with raised_on_other_ranks(create, kv):
            kv.wait()
        same(pulled(kv, 3), 1 + kv.num_workers)
        same(pulled(kv, 5), 1)


@case()
def an_error_on_the_root_is_raised_at_the_end_of_an_uneven_block(create: Stores) -> None:
    kv = create()
    kv.init([3, 5], [full(1)] * 2)
    kv.set_updater(failing)
    with five_fails(create, kv, told=True), kv.uneven():
        kv.push([3, 5], [full(1)] * 2)  # flushed by the end of the block
    same(pulled(kv, 3), 1 + kv.num_workers)
    same(pulled(kv, 5), 1)


class RaisesInDispose(Log):
    """An updater whose `dispose` raises."""

    def dispose(self) -> None:
        super().dispose()
        raise ValueError("not again")


@contextmanager
def dispose_raises(kv: Any) -> Iterator[None]:
    with pytest.raises(ValueError, match="not again") as caught:
        yield
    check_words(caught.value, f"in dispose() of the updater RaisesInDispose on rank {kv.rank}")


@case()
def a_dispose_that_raises_leaves_the_next_updater_in_force(create: Stores) -> None:
    kv, first, second = create(), RaisesInDispose(), RaisesInDispose()
    kv.init(3, full(1))
    kv.set_updater(first)
    with dispose_raises(kv):
        kv.set_updater(second)
    kv.push(3, full(1))
    second.saw(create, kv, (3, kv.num_workers))
    first.saw(create, kv)
    with dispose_raises(kv):
        kv.set_optimizer(ncclkv.optimizer.SGD(learning_rate=1.0))
    kv.push(3, full(1))
    same(pulled(kv, 3), 1)
    assert (first.disposed, second.disposed) == (1, 1)


@case()
def a_dispose_that_raises_is_raised_by_close_once(create: Stores) -> None:
    kv, log = create.open(update_on=create.update_on), RaisesInDispose()
    kv.init(3, full(1))
    kv.set_updater(log)
    with dispose_raises(kv):
        kv.close()
    kv.close()
    assert log.disposed == 1


@case()
def a_dispose_may_use_other_stores_alone(create: Stores) -> None:
    kv, other = create(), create()
    other.init(3, full(7))

    class Closing(Log):
        def dispose(self) -> None:
            super().dispose()
            same(pulled(other, 3), 7)
            kv.pull(3)

    kv.init(3, full(1))
    kv.set_updater(Closing())
    with refused(kv, UsageError, "pull was called inside an updater"):
        kv.set_updater(Log())
    same(pulled(kv, 3), 1)
