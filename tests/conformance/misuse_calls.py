"""Wrong updaters and wrong options."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ncclkv.errors import UpdaterError, UsageError
from tests.conformance.expect import check_words, full, intact, probed, pulled, refused, same, total
from tests.conformance.registry import case
from tests.conformance.stores import Stores


@contextmanager
def raised_later_elsewhere(create: Stores, kv: Any, key: int, text: str) -> Iterator[None]:
    """Expect a later report of an updater's error at a key, on the ranks where it did not run."""
    if create.updates_here(kv, key):
        yield
    else:
        owner = create.owner(kv, key)
        with refused(kv, UpdaterError, text, f", at key {key}, on rank {owner}"):
            yield


class NoUpdate:
    """An updater with `dispose`, and without `update`."""

    def dispose(self) -> None:
        pass


@case()
def objects_that_are_no_updaters(create: Stores) -> None:
    kv = probed(create)
    for wrong in (None, 3, "sgd", NoUpdate()):
        for call in (kv.set_updater, kv._set_updater):
            with refused(kv, UsageError, repr(wrong), "(key, input, stored)"):
                call(wrong)
    intact(kv)


@case()
def a_refused_updater_leaves_the_old_one(create: Stores) -> None:
    kv = probed(create)
    kv.set_updater(lambda key, grad, stored: np.add(stored, grad, out=stored))
    with refused(kv, UsageError, "None"):
        kv.set_updater(None)
    kv.push(3, full(kv.rank + 1))
    same(pulled(kv, 3), 2 + total(kv))


@case()
def an_updater_that_fails_half_way_through_a_list(create: Stores) -> None:
    kv = probed(create)
    refusing = True

    def add(key: int, grad: NDArray[Any], stored: NDArray[Any]) -> None:
        if key == 5 and refusing:
            raise ValueError("not yet")
        stored += grad

    kv.set_updater(add)
    if create.updates_here(kv, 5):
        with pytest.raises(ValueError, match="not yet") as caught:
            kv.push([3, 5], [full(1), full(1)])
        check_words(caught.value, "5", f"rank {kv.rank}")
    else:
        kv.push([3, 5], [full(1), full(1)])
    refusing = False
    with raised_later_elsewhere(create, kv, 5, "not yet"):
        kv.pull(3)
    same(pulled(kv, 3), 2 + kv.num_workers)
    same(pulled(kv, 5), 4)
    kv.push(5, full(kv.rank + 1))
    same(pulled(kv, 5), 4 + total(kv))


@case()
def invalid_options(create: Stores) -> None:
    wrong: list[tuple[str, Any]] = [
        ("update_on", "nowhere"),
        ("update_on", None),
        ("root", -1),
        ("root", 99),
        ("root", "0"),
        ("root", None),
        ("timeout", 0),
        ("timeout", -1.0),
        ("timeout", "soon"),
    ]
    for name, value in wrong:
        with pytest.raises(UsageError) as caught:
            create(**{name: value})
        check_words(caught.value, name, repr(value))
    for name in ("root", "bucket_bytes", "verify_every", "timeout"):
        with pytest.raises(UsageError) as caught:
            create(**{name: 10**5000})
        check_words(caught.value, name, "16,610 bits")
    intact(probed(create))


@case()
def placements_are_named(create: Stores) -> None:
    with pytest.raises(UsageError) as caught:
        create(update_on="every-rank")
    check_words(caught.value, "'every-rank'", "every_rank", "root", "sharded")


@case()
def an_updater_that_calls_its_store(create: Stores) -> None:
    kv = probed(create)

    def look(key: int, grad: NDArray[Any], stored: NDArray[Any]) -> None:
        kv.pull(5)

    kv.set_updater(look)
    if create.updates_here(kv, 3):
        with refused(kv, UsageError, "pull", "updater", "3"):
            kv.push(3, full(1))
    else:
        kv.push(3, full(1))
    with raised_later_elsewhere(create, kv, 3, "pull was called inside an updater"):
        kv.pull(3)
    kv.set_updater(lambda key, grad, stored: np.add(stored, grad, out=stored))
    kv.push(3, full(kv.rank + 1))
    same(pulled(kv, 3), 2 + total(kv))
