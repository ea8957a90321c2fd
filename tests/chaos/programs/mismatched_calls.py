"""Ranks that make different calls, each scenario with a store of its own.

``python mismatched_calls.py caught`` runs all scenarios in turn; every rank prints its results.
``python mismatched_calls.py NAME`` runs one scenario, whose error is not caught.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np

import ncclkv
from ncclkv.errors import KVStoreError, UsageError

ODD = 1
"""The rank that makes another call, except in one scenario, where rank 0 does."""

SIZE = 1000
Scenario = Callable[[Any, bool], Any]
SCENARIOS: dict[str, Scenario] = {}


def scenario(body: Scenario) -> Scenario:
    """Add a scenario of (store, whether this is the odd rank)."""
    SCENARIOS[body.__name__] = body
    return body


def full(value: float = 1.0, size: int = SIZE) -> np.ndarray:
    return np.full(size, value, np.float64)


@scenario
def swapped_pushes(kv: Any, odd: bool) -> None:
    first, second = ("b", "a") if odd else ("a", "b")
    kv.push(first, full())
    kv.push(second, full())
    kv.pull(["a", "b"], out=OUTS)


@scenario
def missing_push(kv: Any, odd: bool) -> None:
    kv.push("a", full())
    if not odd:
        kv.push("b", full())
    kv.pull(["a", "b"], out=OUTS)


@scenario
def missing_key_of_a_list(kv: Any, odd: bool) -> None:
    keys = ["a"] if odd else ["a", "b"]
    kv.push(keys, [full()] * len(keys))
    kv.pull(["a", "b"], out=OUTS)


@scenario
def missing_push_in_a_group(kv: Any, odd: bool) -> None:
    with kv.group():
        kv.push("a", full())
        if not odd:
            kv.push("b", full())
        kv.pull("a", out=OUTS[0])
    kv.wait()


@scenario
def other_keys_of_an_overlap(kv: Any, odd: bool) -> None:
    keys = ["a"] if odd else ["a", "b"]
    with kv.overlap(keys):
        for key in keys:
            kv.push(key, full())
    kv.wait()


@scenario
def missing_push_in_an_overlap(kv: Any, odd: bool) -> None:
    with suppress(UsageError), kv.overlap(["a", "b"]):
        kv.push("a", full())
        if not odd:
            kv.push("b", full())
    kv.barrier()


@scenario
def other_key_missing_in_an_overlap(kv: Any, odd: bool) -> None:
    with suppress(UsageError), kv.overlap(["a", "b"]):
        kv.push("a" if odd else "b", full())
    kv.barrier()


@scenario
def overlap_against_push(kv: Any, odd: bool) -> None:
    if odd:
        kv.push(
            ["a", "b", "large", "huge"], [full(), full(), full(size=300_000), full(size=300_000)]
        )
    else:
        with kv.overlap(["a", "b", "large", "huge"]):
            for key, size in ("huge", 300_000), ("a", SIZE), ("b", SIZE), ("large", 300_000):
                kv.push(key, full(size=size))
    kv.wait()


@scenario
def extra_pull_on_rank_0(kv: Any, odd: bool) -> None:
    kv.push("a", full())
    if kv.rank == 0:
        kv.pull("a", out=OUTS[0])
    kv.push("b", full())
    kv.pull("b", out=OUTS[1])


@scenario
def another_key_of_the_same_size(kv: Any, odd: bool) -> None:
    kv.pushpull("b" if odd else "a", full(), out=OUTS[0])


@scenario
def another_priority(kv: Any, odd: bool) -> None:
    kv.push(["a", "b"], [full(), full()], priority=int(odd))
    kv.pull("a", out=OUTS[0])


@scenario
def wrong_shape(kv: Any, odd: bool) -> None:
    refused(kv, full(size=SIZE + 1) if odd else full())
    kv.barrier()


@scenario
def wrong_dtype(kv: Any, odd: bool) -> None:
    refused(kv, full().astype(np.float32) if odd else full())
    kv.barrier()


def refused(kv: Any, value: np.ndarray) -> None:
    """Push a value; if it is refused, continue, as a program does that logs errors."""
    with suppress(UsageError):
        kv.push("a", value)


@scenario
def fewer_steps(kv: Any, odd: bool) -> None:
    for _ in range(4 if odd else 5):
        kv.pushpull("a", full(), out=np.zeros(SIZE))
    kv.barrier()


@scenario
def fewer_steps_and_close(kv: Any, odd: bool) -> None:
    for _ in range(4 if odd else 5):
        kv.pushpull("a", full(), out=np.zeros(SIZE))
    kv.close()


@scenario
def barrier_against_push(kv: Any, odd: bool) -> None:
    if odd:
        kv.barrier()
    kv.pushpull("a", full(), out=OUTS[0])


@scenario
def updater_against_push(kv: Any, odd: bool) -> None:
    if odd:
        kv.set_updater(lambda key, total, stored: None)
    kv.pushpull("a", full(), out=OUTS[0])


@scenario
def reset_against_pull(kv: Any, odd: bool) -> None:
    kv.push("a", full())
    if odd:
        kv.reset("a", full())
    kv.pull("a", out=OUTS[0])


@scenario
def large_values(kv: Any, odd: bool) -> None:
    kv.pushpull("large" if odd else "huge", full(size=300_000), out=full(-77, size=300_000))


@scenario
def a_key_among_many(kv: Any, odd: bool) -> None:
    keys = [f"k{index}" for index in range(100) if not (odd and index == 57)]
    kv.push(keys, [full(size=3)] * len(keys))
    kv.wait()


@scenario
def through_a_function_of_the_programs(kv: Any, odd: bool) -> None:
    def step(key: str) -> None:
        kv.push(key, full())

    step("b" if odd else "a")
    kv.pull("a", out=OUTS[0])


@scenario
def key_sets_at_init(kv: Any, odd: bool) -> None:
    keys = ["x", "y"] if odd else ["x", "z"]
    kv.init(keys, [full(), full()])


@scenario
def shapes_at_init(kv: Any, odd: bool) -> None:
    kv.init("x", full(size=SIZE + odd))


@scenario
def extra_create(kv: Any, odd: bool) -> None:
    if odd:
        ncclkv.create("dist_sync", timeout=20).close()
    kv.pushpull("a", full(), out=OUTS[0])


@scenario
def two_stores_crossed(kv: Any, odd: bool) -> None:
    stores = OTHERS[::-1] if odd else OTHERS
    for store in stores:
        store.pushpull("a", full(), out=OUTS[0])


def two_stores_crossed_late(kv: Any, odd: bool) -> None:
    if odd:
        time.sleep(LATE)
    two_stores_crossed(kv, odd)


def push_of_a_wrong_shape(kv: Any, odd: bool) -> None:
    kv.push("a", full(size=SIZE + 1) if odd else full())
    kv.barrier()


def push_of_a_wrong_dtype(kv: Any, odd: bool) -> None:
    kv.push("a", full().astype(np.float32) if odd else full())
    kv.barrier()


CROSSED = ("two_stores_crossed", "two_stores_crossed_late")
LATE = 4.5
"""Seconds after which ranks without a common page compare calls rarely."""

OUTS: list[np.ndarray] = []
OTHERS: list[Any] = []


def opened() -> Any:
    """A store with the keys of all scenarios."""
    kv = ncclkv.create("dist_sync", timeout=20)
    kv.init(["a", "b", "large", "huge"], [full(0), full(0), full(0, 300_000), full(0, 300_000)])
    kv.init([f"k{index}" for index in range(100)], [full(0, 3)] * 100)
    return kv


def prepared(name: str) -> Any:
    """Return the arguments of a scenario, made on all ranks at once."""
    OUTS[:] = [full(-77), full(-77)]
    OTHERS[:] = [opened(), opened()] if name in CROSSED else []
    kv = opened()
    kv.barrier()
    return kv


def caught(name: str) -> None:
    """Run a scenario, and print its error, its time, and whether any out was written."""
    kv = prepared(name)
    begin = time.monotonic()
    try:
        globals()[name](kv, kv.rank == ODD)
        said = "nothing"
    except KVStoreError as error:
        said = f"{type(error).__name__}: {error}"
    seconds = time.monotonic() - begin
    untouched = all((out == -77).all() for out in OUTS)
    # One write, because the lines of two ranks may be mixed.
    sys.stdout.write(f"{name}|{kv.rank}|{seconds:.2f}|{untouched}|{said}\n")
    sys.stdout.flush()
    if name in (*CROSSED, "extra_create"):
        time.sleep(1)  # the others must find the difference themselves, not by this rank's exit
    for store in [kv, *OTHERS]:
        with suppress(KVStoreError):  # a scenario that raised nothing
            store.close()


def main() -> None:
    if sys.argv[1] == "caught":
        for name in sys.argv[2:] or SCENARIOS:
            caught(name)
    else:
        kv = prepared(sys.argv[1])
        globals()[sys.argv[1]](kv, kv.rank == ODD)


main()
