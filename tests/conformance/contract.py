"""Ranks that disagree: every rank soon raises an error that shows both sides."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import ncclkv.optimizer as optimizer
from ncclkv.errors import ContractError, OrderMismatch, SpecMismatch, UsageError
from tests.conformance.expect import check_words, full, intact, probed, pulled, same, total
from tests.conformance.registry import SEVERAL, case
from tests.conformance.stores import Stores
from tests.harness.slow import stretched

SECONDS = stretched(2.0)


@contextmanager
def disagreement(*words: str) -> Iterator[None]:
    """Expect `SpecMismatch` with all of `words` before `SECONDS` are over."""
    begin = time.monotonic()
    with pytest.raises(SpecMismatch) as caught:
        yield
    assert time.monotonic() - begin < SECONDS
    check_words(caught.value, *words)


def broken(kv: Any) -> None:
    """Fail unless every call but `close` repeats the disagreement."""
    calls: list[Callable[[], Any]] = [
        lambda: kv.init("later", full(0)),
        lambda: kv.push("w", full(0)),
        lambda: kv.pull("w", out=full(0)),
        lambda: kv.pushpull("w", full(0)),
        lambda: kv.wait(),
        lambda: kv.barrier(),
    ]
    for call in calls:
        with pytest.raises(SpecMismatch):
            call()
    kv.close()
    kv.close()


@case(sizes=SEVERAL)
def shapes(create: Stores) -> None:
    kv = create()
    last = kv.num_workers - 1
    with disagreement("'w'", "(2, 3)", "(3, 2)", f"rank {last}", "rank 0"):
        kv.init("w", full(0, (3, 2) if kv.rank == last else (2, 3)))
    broken(kv)


@case(sizes=SEVERAL)
def dtypes(create: Stores) -> None:
    kv = create()
    with disagreement("'w'", "float32", "float64", "rank 0", "rank 1"):
        kv.init("w", full(0, dtype=np.float64 if kv.rank == 0 else np.float32))
    broken(kv)


@case(sizes=SEVERAL)
def ops(create: Stores) -> None:
    kv = create()
    with disagreement("'w'", "sum", "max"):
        kv.init("w", full(0), op="max" if kv.rank == 1 else "sum")
    broken(kv)


@case(sizes=SEVERAL)
def names(create: Stores) -> None:
    kv = create()
    with disagreement("'w'", "'b'", "rank 1"):
        kv.init("b" if kv.rank == 1 else "w", full(0))
    broken(kv)


@case(sizes=SEVERAL)
def string_keys_in_another_order(create: Stores) -> None:
    kv = create()
    first, second = ("a", "b") if kv.rank == 0 else ("b", "a")
    with disagreement("'a'", "'b'"):
        kv.init(first, full(1))
        kv.init(second, full(2))
    broken(kv)


@case(sizes=SEVERAL)
def a_list_in_another_order(create: Stores) -> None:
    kv = create()
    keys = ["a", "b", "c"]
    with disagreement("'a'", "'c'"):
        kv.init(keys if kv.rank == 0 else keys[::-1], [full(0)] * 3)
    broken(kv)


@case(sizes=SEVERAL)
def lists_of_another_length(create: Stores) -> None:
    kv = create()
    keys = ["a", "b", "c"] if kv.rank == 0 else ["a", "b"]
    with disagreement("'c'"):
        kv.init(keys, [full(0)] * len(keys))
    broken(kv)


@case(sizes=SEVERAL)
def broadcast_of_another_shape(create: Stores) -> None:
    kv = create()
    shape = (2, 3) if kv.rank == 0 else (2, 4)
    with disagreement("'w'", "(2, 3)", "(2, 4)"):
        kv.broadcast("w", full(0, shape), full(0, shape))
    broken(kv)


@case(sizes=SEVERAL)
def a_second_init_where_others_init_the_next(create: Stores) -> None:
    kv = probed(create)
    with disagreement("rank 0", "KeyAlreadyInitialized", "3"):
        kv.init(3 if kv.rank == 0 else 7, full(0))
    broken(kv)


@case(sizes=SEVERAL)
def a_value_that_one_rank_cannot_read(create: Stores) -> None:
    for verb in ("init", "reset", "broadcast"):
        kv = create()
        kv.init("w", full(2))
        key = "new" if verb == "init" else "w"
        value = 1.5 if kv.rank == 1 else full(3)
        outs = [full(0)] if verb == "broadcast" else []
        with disagreement("rank 1", verb, repr(key), "float"):
            getattr(kv, verb)(key, value, *outs)
        broken(kv)


@case(sizes=SEVERAL)
def an_updater_on_some_ranks_alone(create: Stores) -> None:
    kv = probed(create)
    with disagreement("rank 1", "set_updater", "None"):
        kv.set_updater(None if kv.rank == 1 else lambda key, grad, stored: None)
    broken(kv)


@case(sizes=SEVERAL)
def optimizers(create: Stores) -> None:
    kv = probed(create)
    begin = time.monotonic()
    with pytest.raises(ContractError) as caught:
        kv.set_optimizer(optimizer.SGD(learning_rate=0.5 if kv.rank == 0 else 0.25))
    assert time.monotonic() - begin < SECONDS
    check_words(caught.value, "0.5", "0.25", "learning_rate")
    kv.close()


@case(sizes=SEVERAL)
def numbers_of_the_optimizer_in_a_later_push(create: Stores) -> None:
    for update_on in ("every_rank", "sharded"):
        for verb in ("push", "pushpull", "group", "overlap"):
            kv = create(update_on=update_on)
            kv.init(["a", "b"], [full(0), full(0)])
            sgd = optimizer.SGD(learning_rate=0.5)
            kv.set_optimizer(sgd)
            _push_by("push", kv)
            sgd.learning_rate = 0.25  # on all ranks
            _push_by(verb, kv)
            sgd.learning_rate = 0.25
            same(pulled(kv, "a"), -0.75 * kv.num_workers)
            if kv.rank == 1:
                sgd.learning_rate, sgd.wd = 0.125, 0.0625
            with pytest.raises(OrderMismatch) as caught:
                _push_by(verb, kv)
            check_words(caught.value, "rank 1 called", "learning_rate=0.125, wd=0.0625")
            kv.close()


def _push_by(verb: str, kv: Any) -> None:
    """Push two keys by a verb, and pull them."""
    keys, outs = ["a", "b"], [full(0), full(0)]
    if verb == "pushpull":
        kv.pushpull(keys, [full(1), full(1)], out=outs)
        return
    if verb == "push":
        kv.push(keys, [full(1), full(1)])
    else:
        with kv.group() if verb == "group" else kv.overlap():
            kv.push("b", full(1))
            kv.push("a", full(1))
    kv.pull(keys, out=outs)


@case(sizes=SEVERAL)
def numbers_of_ranks_that_do_not_update(create: Stores) -> None:
    kv = create(update_on="root")
    kv.init(["a", "b"], [full(0), full(0)])
    sgd = optimizer.SGD(learning_rate=0.5)
    kv.set_optimizer(sgd)
    if kv.rank == 0:
        sgd.learning_rate = 0.25
    _push_by("push", kv)
    same(pulled(kv, "a"), -0.25 * kv.num_workers)


@case(sizes=SEVERAL)
def options_of_the_store(create: Stores) -> None:
    probe = create()
    for name, mine, theirs in (("bucket_bytes", 0, 4096), ("update_on", "root", "every_rank")):
        value = mine if probe.rank == 0 else theirs
        with disagreement(name, str(mine), str(theirs), "rank 0", "rank 1"):
            create(**{name: value})


@case(sizes=SEVERAL)
def other_stores_stay_usable(create: Stores) -> None:
    good, bad = probed(create), create()
    with disagreement("'w'"):
        bad.init("w", full(0, (1 + bad.rank,)))
    intact(good)


@case(sizes=SEVERAL)
def a_wrong_call_on_one_rank_fails_there_alone(create: Stores) -> None:
    kv = probed(create)
    if kv.rank == 1:
        with pytest.raises(UsageError):
            kv.push(3, full(1, (7,)))
        with pytest.raises(UsageError):
            kv.pull(99, out=full(0))
        with pytest.raises(UsageError):
            kv.pushpull([3, 5], [full(1)])
        with pytest.raises(UsageError):
            kv.wait(99)
    kv.push(3, full(kv.rank + 1))
    same(pulled(kv, 3), total(kv))
    same(pulled(kv, 5), 4)


@case(sizes=SEVERAL)
def a_reset_of_states_on_some_ranks(create: Stores) -> None:
    kv = probed(create)
    first = optimizer.SGD(learning_rate=0.5)
    kv.set_optimizer(first)
    with disagreement("set_optimizer", "state is kept: True", "state is kept: False", "rank 1"):
        kv.set_optimizer(first, reset_states=kv.rank == 1)
    broken(kv)
