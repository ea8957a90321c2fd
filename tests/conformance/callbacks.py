"""Functions of the program that a store calls: verbs inside are refused, or right on every rank."""

from __future__ import annotations

import logging
from collections.abc import Callable
from tempfile import TemporaryDirectory
from threading import get_ident
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ncclkv.engine.instrument import Instrument, Launch
from ncclkv.errors import UsageError
from ncclkv.optimizer import SGD
from tests.conformance.capabilities import current_buffers
from tests.conformance.expect import full, pulled, refused, same, total
from tests.conformance.registry import case
from tests.conformance.stores import Stores
from tests.harness.context import context_of


class Refused:
    """Attempts verbs of two stores inside a function of the program.

    Parameters
    ----------
    kv, other : KVStore
        The store that calls the function, and another.
    """

    def __init__(self, kv: Any, other: Any) -> None:
        self.texts: list[str] = []
        self._calls: list[Callable[[], object]] = [
            lambda: kv.pull(3),
            kv.barrier,
            lambda: other.push(3, full(1)),
            lambda: other.pull(3),
            other.close,
        ]

    def __call__(self, *_: object) -> None:
        for call in self._calls:
            with pytest.raises(UsageError, match=r" (was called|called) inside ") as caught:
                call()
            self.texts.append(str(caught.value))

    def check(self, inside: str, *, called: bool = True) -> None:
        """Fail unless all attempts were made, and refused by names."""
        assert bool(self.texts) == called
        for text in self.texts:
            assert f" was called inside {inside}" in text, text
        self.texts.clear()


def two_stores(create: Stores) -> tuple[Any, Any, Refused]:
    """Return two stores with the key 3, and the attempts to call them."""
    kv, other = create(), create()
    for each in (kv, other):
        each.init(3, full(2))
    return kv, other, Refused(kv, other)


def intact(kv: Any, other: Any, value: float) -> None:
    """Fail unless both stores go on, with their values on every rank."""
    same(pulled(kv, 3), value)
    other.push(3, full(other.rank + 1))
    same(pulled(other, 3), total(other))


@case()
def verbs_inside_a_schedule(create: Stores) -> None:
    kv, other, attempt = two_stores(create)

    def rate(updates: int) -> float:
        attempt()
        return 0.5

    kv.set_optimizer(SGD(lr_scheduler=rate))
    attempt.texts.clear()
    kv.push(3, full(kv.rank + 1))
    attempt.check("push")
    intact(kv, other, 2 - 0.5 * total(kv))


@case()
def verbs_inside_an_instrument(create: Stores) -> None:
    kv, other, attempt = two_stores(create)

    class Calls(Instrument):
        def verb(self, name: str, seconds: float) -> None:
            attempt()

        def launched(self, launch: Launch) -> None:
            attempt()

    calls = Calls()
    kv.add_instrument(calls)
    kv.push(3, full(kv.rank + 1))
    attempt.check("push")
    kv.remove_instrument(calls)
    intact(kv, other, total(kv))


@case()
def verbs_inside_a_handler_of_log_records(create: Stores) -> None:
    other = create()
    other.init(3, full(2))
    kv = create(nonfinite="skip_step")
    kv.init(3, full(2))
    attempt, thread = Refused(kv, other), get_ident()

    class Calls(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if get_ident() == thread:  # other ranks may be threads of this process
                attempt()

    handler, log = Calls(), logging.getLogger("ncclkv")
    log.addHandler(handler)
    try:
        kv.push(3, full(np.nan))
        kv.wait()
    finally:
        log.removeHandler(handler)
    attempt.check("wait", called=kv.rank == 0)
    intact(kv, other, 2)


@case(needs="safetensors")
def verbs_inside_the_state_methods_of_an_updater(create: Stores) -> None:
    kv, other, attempt = two_stores(create)
    called: list[str] = []

    class Updater:
        def update(self, key: Any, grad: NDArray[Any], stored: NDArray[Any]) -> None:
            stored += grad

        def state_dict(self) -> dict[str, Any]:
            attempt()
            called.append("save")
            return {"steps": 1}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            attempt()
            called.append("load")

    kv.set_updater(Updater())
    with TemporaryDirectory() as directory:
        kv.save(directory)
        attempt.check("save", called="save" in called)
        kv.load(directory)
        attempt.check("load", called="load" in called)
    assert kv.rank or called
    intact(kv, other, 2)


@case(needs="safetensors")
def a_verb_that_a_state_method_lets_pass_breaks_no_store(create: Stores) -> None:
    kv = create()
    kv.init(3, full(2))

    class Updater:
        def update(self, key: Any, grad: NDArray[Any], stored: NDArray[Any]) -> None:
            stored += grad

        def state_dict(self) -> object:
            return kv.pull(3)

    kv.set_updater(Updater())
    with TemporaryDirectory() as directory:
        words = ("state_dict of the updater Updater", "pull was called inside save")
        with refused(kv, UsageError, *words):
            kv.save(directory)
    kv.push(3, full(kv.rank + 1))
    same(pulled(kv, 3), 2 + total(kv))


@case()
def verbs_inside_apply_of_a_communicator(create: Stores) -> None:
    kv, other, attempt = two_stores(create)
    comm, place = context_of(kv).comm, current_buffers()
    buffer = place.put(np.ones(4, np.float32))
    # The last rank alone tries, and its log of calls must stay that of the others.
    apply = attempt if kv.rank == kv.num_workers - 1 else lambda lo, hi: None
    comm.reduction(buffer, buffer).launch(apply).wait()
    attempt.check("'apply' or a step", called=kv.rank == kv.num_workers - 1)
    intact(kv, other, 2)


@case()
def updaters_that_all_ranks_run_may_call_other_stores(create: Stores) -> None:
    kv, other = create(), create()
    for each in (kv, other):
        each.init(3, full(2))

    def add(key: int, grad: NDArray[Any], stored: NDArray[Any]) -> None:
        other.push(3, full(other.rank + 1))
        stored += grad + float(pulled(other, 3).flat[0])

    kv.set_updater(add)
    if create.update_on == "every_rank":
        kv.push(3, full(kv.rank + 1))
        same(pulled(kv, 3), 2 + total(kv) + total(other))
    same(pulled(other, 3), total(other) if create.update_on == "every_rank" else 2)
