"""Failures on one rank before its call is recorded: the rank is not behind, the store intact."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import ncclkv
from tests.conformance.expect import full, intact, probed, pulled, same
from tests.conformance.registry import case
from tests.conformance.stores import Stores


class Broken(list[Any]):
    """A list whose items raise when they are read."""

    def __iter__(self) -> Iterator[Any]:
        raise RuntimeError("no items today")


class Interrupted:
    """An array that raises KeyboardInterrupt when it is examined."""

    def __dlpack__(self, **options: Any) -> Any:
        raise KeyboardInterrupt

    def __dlpack_device__(self) -> tuple[int, int]:
        raise KeyboardInterrupt


def on_one_rank(kv: Any, error: type[BaseException], call: Callable[[], object]) -> None:
    """Make a call that fails on the last rank, and on no other."""
    if kv.rank == kv.num_workers - 1:
        with pytest.raises(error):
            call()


@case()
def an_error_of_an_argument_breaks_nothing(create: Stores) -> None:
    for given, error in (
        (Broken([full(1), full(2)]), RuntimeError),
        (
            [full(1), Interrupted()],
            KeyboardInterrupt,
        ),
    ):
        kv = probed(create)
        calls: list[Callable[[], object]] = [
            lambda kv=kv, given=given: kv.push([3, 5], given),
            lambda kv=kv, given=given: kv.pull([3, 5], out=given),
            lambda kv=kv, given=given: kv.pull([3, 5], out=given, local=True),
            lambda kv=kv, given=given: kv.pushpull([3, 5], given),
            lambda kv=kv, given=given: kv.pushpull([3, 5], [full(1), full(2)], out=given),
        ]
        for call in calls:
            on_one_rank(kv, error, call)
        intact(kv)


@case()
def an_error_of_an_argument_in_a_group_breaks_nothing(create: Stores) -> None:
    kv = probed(create)
    with kv.group():
        kv.push(3, full(kv.rank + 1))
        on_one_rank(kv, RuntimeError, lambda: kv.push([3, 5], Broken([full(1), full(2)])))
        kv.pull(3, out=full(0))
    same(pulled(kv, 3), kv.num_workers * (kv.num_workers + 1) / 2)
    same(pulled(kv, 5), 4)


class RaisesInConfig(ncclkv.optimizer.SGD):
    """An optimizer whose numbers sometimes raise when they are read."""

    raising = False

    def config(self) -> dict[str, Any]:
        if self.raising:
            raise ArithmeticError("the schedule has ended")
        return super().config()


@case()
def an_error_of_the_optimizer_breaks_nothing(create: Stores) -> None:
    kv, mine = probed(create), RaisesInConfig(learning_rate=1.0)
    kv.set_optimizer(mine)
    mine.raising = True
    on_one_rank(kv, ArithmeticError, lambda: kv.push(3, full(1)))
    on_one_rank(kv, ArithmeticError, lambda: kv.pushpull(3, full(1)))
    mine.raising = False
    kv.push([3, 5], [full(1), full(2)])
    same(pulled(kv, 3), 2 - kv.num_workers)
    same(pulled(kv, 5), 4 - 2 * kv.num_workers)
