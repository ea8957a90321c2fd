"""Stores with `verify_every`: differences that they find, and differences that they allow."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ncclkv
from ncclkv.errors import Divergence
from tests.conformance.capabilities import current_buffers
from tests.conformance.expect import check_words, full, pulled, same, total
from tests.conformance.overwrite import (
    describe_outliers,
    expect_divergence,
    last,
    open_verified,
    overwrite,
    overwrite_pulls,
)
from tests.conformance.registry import SEVERAL, case
from tests.conformance.stores import Stores
from tests.harness.context import context_of


def momentum() -> Any:
    return ncclkv.optimizer.SGD(learning_rate=0.5, momentum=0.5)


def add(key: Any, value: Any, stored: Any) -> None:
    stored += value


@case()
def no_alarm_without_an_updater(create: Stores) -> None:
    kv = open_verified(create)
    for step in range(1, 4):
        kv.push(["w", "b"], [full(step * (kv.rank + 1)), full(step)])
        same(pulled(kv, "w"), step * total(kv))
        with kv.group():
            kv.push("b", full(1))
        kv.wait("b")
        kv.barrier()
    kv.broadcast("new", full(7), out=full(0))
    same(kv.pull("new"), 7)
    assert kv.repaired == 0


@case()
def no_alarm_with_an_optimizer(create: Stores) -> None:
    kv = open_verified(create)
    kv.set_optimizer(momentum())
    outs = [full(0), full(0)]
    for _ in range(3):
        kv.pushpull(["w", "b"], [full(kv.rank + 1), full(1)], out=outs)
    # Three steps of momentum 1/2 under one gradient g: half of g, of 1.5 g and of 1.75 g.
    same(outs[0], 2 - 0.5 * total(kv) * 4.25)
    kv.wait()


@case()
def no_alarm_with_a_function(create: Stores) -> None:
    kv = open_verified(create)
    kv.set_updater(add)
    for _ in range(3):
        kv.push(["w", "b"], [full(kv.rank + 1), full(1)])
        kv.pull(["w", "b"])
    same(pulled(kv, "w"), 2 + 3 * total(kv))


@case(sizes=SEVERAL)
def arrays_of_other_kinds_are_no_difference(create: Stores) -> None:
    """Ranks may pull into other dtypes, other layouts, and any number of arrays."""
    kv = open_verified(create)
    first = kv.rank == 0
    kv.pull("w", out=current_buffers().put(np.zeros((2, 3), np.float64 if first else np.float32)))
    out = current_buffers().put(np.zeros((3, 2), np.float32))
    kv.pull("w", out=out.T if first else current_buffers().put(full(0)))
    kv.pull(["w", "w"] if first else ["w"], out=[full(0), full(1)] if first else [full(0)])
    kv.pull("w")
    kv.barrier()


@case(sizes=SEVERAL)
def an_overwritten_value_is_found_by_a_pull(create: Stores) -> None:
    kv = open_verified(create)
    kv.push(["w", "b"], [full(1), full(1)])
    outliers = overwrite(kv, "w")
    words = "after 2 flushes values differ: of key 'w' rank", "(held and pulled)", "rank 0's"
    expect_divergence(kv, lambda: kv.pull(["b", "w"]), outliers, *words)
    kv.close()


@case(sizes=SEVERAL)
def an_overwritten_value_is_found_without_a_pull(create: Stores) -> None:
    for verb in ("wait", "wait for b", "barrier"):
        kv = open_verified(create)
        kv.push(["w", "b"], [full(1), full(1)])
        outliers = overwrite(kv, "b")
        calls = {"wait": kv.wait, "wait for b": lambda kv=kv: kv.wait("b"), "barrier": kv.barrier}
        expect_divergence(kv, calls[verb], outliers, "of key 'b' rank", "(held);")
        kv.close()


@case(sizes=SEVERAL)
def only_the_keys_of_a_call_are_compared(create: Stores) -> None:
    kv = open_verified(create)
    kv.push(["w", "b"], [full(1), full(1)])
    outliers = overwrite(kv, "b")
    kv.pull("w")
    kv.wait("w")
    expect_divergence(kv, lambda: kv.pull("b"), outliers)


@case(sizes=SEVERAL)
def an_overwritten_value_under_an_optimizer(create: Stores) -> None:
    """Every update starts from the wrong value; the difference is found at the end of a group."""
    kv = open_verified(create, every=5)
    kv.set_optimizer(momentum())
    kv.push(["w", "b"], [full(1), full(1)])
    kv.pull(["w", "b"])
    outliers = overwrite(kv, "w")  # with a wait, the second counted call
    if create.update_on != "every_rank":
        outliers = []  # each pull copies the value of the rank that updates
    for _ in range(2):
        kv.pushpull("w", full(1), out=full(0))

    def group() -> None:
        with kv.group():
            kv.push("w", full(1))
            kv.pull("w", out=full(0))

    expect_divergence(kv, group, outliers, "after 5 flushes", "of key 'w'", "(held and pulled)")


@case(sizes=SEVERAL)
def comparisons_every_few_calls(create: Stores) -> None:
    kv = open_verified(create, every=3)
    kv.push("w", full(1))
    outliers = overwrite(kv, "w")  # the first call
    kv.pull("w")
    with kv.group():
        kv.pull("b", out=full(0))  # the third call, of another key
    kv.pull("w", local=True)
    kv.pull("w")
    with kv.group():
        kv.push("b", full(1))  # no value is read
    kv.wait("w")
    expect_divergence(kv, lambda: kv.pull("w"), outliers, "after 6 flushes")


@case(sizes=SEVERAL)
def a_value_without_a_bucket(create: Stores) -> None:
    kv = open_verified(create)
    if kv.rank == last(kv):
        current_buffers().write(context_of(kv).engine.layout.pending["w"], 99)
    expect_divergence(kv, kv.barrier, [last(kv)], "of key 'w'", "(held)")


@case(sizes=SEVERAL)
def an_updater_that_differs_on_one_rank(create: Stores) -> None:
    kv = open_verified(create)

    def update(key: Any, value: Any, stored: Any) -> None:
        stored += value + (key == "b") * (kv.rank == last(kv))

    kv.set_updater(update)
    outliers = [last(kv)] if create.update_on == "every_rank" else []
    work = [full(1), full(1)]
    expect_divergence(
        kv, lambda: kv.pushpull(["w", "b"], work), outliers, "of key 'b'", "(held and pulled)"
    )


@case(sizes=SEVERAL)
def an_updater_that_raises_on_one_rank(create: Stores) -> None:
    """The updater's exception is not lost: it is the cause of the difference."""
    kv = open_verified(create)

    def update(key: Any, value: Any, stored: Any) -> None:
        if kv.rank == last(kv):
            raise ZeroDivisionError("mine")
        stored += value

    kv.set_updater(update)
    if create.update_on != "every_rank":
        return
    with pytest.raises(Divergence) as caught:
        kv.pushpull("w", full(1), out=full(0))
    check_words(caught.value, describe_outliers([last(kv)], kv.num_workers))
    assert isinstance(caught.value.__cause__, ZeroDivisionError) is (kv.rank == last(kv))


@case(sizes=SEVERAL)
def an_overwritten_pull(create: Stores) -> None:
    """The difference is found even if ranks share their values."""
    kv = open_verified(create)
    kv.push(["w", "b"], [full(1), full(1)])
    kv.pull("w")
    overwrite_pulls(kv)
    out = current_buffers().put(full(0))
    expect_divergence(kv, lambda: kv.pull("w", out=out), [last(kv)], "of key 'w'", "(pulled)")


@case(sizes=SEVERAL)
def a_sign_of_zero_and_a_swap(create: Stores) -> None:
    """Checksums cover all bits and their positions."""
    for values in ([-0.0, 0, 3, 4, 5, 6], [0, 0, 4, 3, 5, 6]):
        kv = create(verify_every=1)
        kv.init("w", np.array([0, 0, 3, 4, 5, 6], np.float32))
        if kv.rank == last(kv):
            current_buffers().write(
                context_of(kv).engine.layout.pending["w"], np.array(values, np.float32)
            )
        expect_divergence(kv, kv.wait, [last(kv)])
        kv.close()


@case(sizes=SEVERAL)
def many_keys_are_counted(create: Stores) -> None:
    kv = create(verify_every=1)
    kv.init(list(range(10)), [full(0)] * 10)
    if kv.rank == last(kv):
        for key in range(1, 10):
            current_buffers().write(context_of(kv).engine.layout.pending[key], 99)
    with pytest.raises(Divergence) as caught:
        kv.pull(list(range(10)))
    check_words(caught.value, "of key 1 rank", "of key 4 rank", " and 5 more keys;")
    assert "key 5" not in str(caught.value)
