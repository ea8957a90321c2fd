"""Times in a store's plan, and bucket sizes that ranks choose by measurements."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

import ncclkv
from tests.conformance.capabilities import current_buffers
from tests.conformance.expect import full, pulled, same, total
from tests.conformance.registry import case
from tests.conformance.stores import Stores

MIB = 1024 * 1024
TIME = r"(-|\d+\.\d{3} ms)"


def times(kv: Any, key: str) -> tuple[str, str]:
    """Return the predicted and the measured time of the bucket that begins with `key`."""
    found = re.search(rf" {TIME} +{TIME}  '{key}'", kv.explain_plan())
    assert found, kv.explain_plan()
    return found[1], found[2]


def sizes(kv: Any) -> tuple[int, int]:
    """Return the bucket sizes in the plan and in the store's `repr`."""
    told = [
        re.search(r"^bucket_bytes=(\d+)", kv.explain_plan(), re.MULTILINE),
        re.search(r"bucket_bytes (\d+),", repr(kv)),
    ]
    first, second = (int(each[1]) for each in told if each)
    return first, second


@case()
def plan_has_the_times_of_whole_bucket_reductions(create: Stores) -> None:
    kv = create()
    kv.init(["a", "b"], [full(0), full(0)])
    kv.set_optimizer(ncclkv.optimizer.SGD(learning_rate=1.0))
    kv.push("a", full(1))
    kv.wait()
    assert times(kv, "a") == ("-", "-")  # of a part of its keys
    for _ in range(2):
        kv.push(["a", "b"], [full(1), full(1)])
        kv.wait()
    predicted, measured = times(kv, "a")
    assert predicted == "-"
    if current_buffers().capabilities.timed:
        assert float(measured.removesuffix(" ms")) >= 0
    else:
        assert measured == "-"


@case()
def plan_has_no_time_of_a_broadcast(create: Stores) -> None:
    kv = create(update_on="root")
    kv.init(["a", "b"], [full(0), full(0)])
    kv.set_optimizer(ncclkv.optimizer.SGD(learning_rate=1.0))
    kv.push("a", full(1))
    same(pulled(kv, "a"), -kv.num_workers)
    assert times(kv, "a") == ("-", "-")


@case()
def plan_has_the_given_bucket_size(create: Stores) -> None:
    assert sizes(create()) == (25 * MIB, 25 * MIB)
    assert sizes(create(bucket_bytes=np.int64(4096))) == (4096, 4096)


@case()
def buckets_of_a_measured_size_are_equal_on_all_ranks(create: Stores) -> None:
    kv = create(bucket_bytes="auto")
    size, shown = sizes(kv)
    assert size == shown
    assert size in [25 * MIB, *(MIB << power for power in range(7))]
    kv.init("least", full(0, (1,), np.int64), op="min")
    kv.init("most", full(0, (1,), np.int64), op="max")
    kv.init("w", full(0))
    kv.push(["least", "most"], [full(size, (1,), np.int64)] * 2)
    kv.push("w", full(kv.rank + 1))
    same(pulled(kv, "least", full(0, (1,), np.int64)), size)
    same(pulled(kv, "most", full(0, (1,), np.int64)), size)
    same(pulled(kv, "w"), total(kv))
    if kv.num_workers == 1:
        assert size == 25 * MIB
        assert times(kv, "w")[0] == "-"
    elif size != 25 * MIB:
        assert float(times(kv, "w")[0].removesuffix(" ms")) >= 0
