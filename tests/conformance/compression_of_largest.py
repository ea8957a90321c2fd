"""Gradients of which the largest are sent: topk on every layout, against a model of its senders."""

from __future__ import annotations

from typing import Any

import numpy as np

from ncclkv.store.backends import ALONE
from tests.conformance.capabilities import current_buffers
from tests.conformance.compression import check, check_drained_ranks, on_host
from tests.conformance.registry import case
from tests.conformance.stores import Stores
from tests.harness.context import context_of

LENGTHS = {"w": 1000, "a": 1, "b": 60, "empty": 0, "long": 40_001}
RATIO = 0.1
SENT = ["w", "b", "long"]
"""Keys of which four ranks send less than the whole."""


def gradient(rank: int, step: int, key: str) -> np.ndarray:
    """Return a rank's gradient, of eighths, so that sums are exact; many are equal."""
    seed = [rank, step, *key.encode()]
    found = np.random.default_rng(seed).integers(-40, 41, LENGTHS[key]) / 8
    return found.astype(np.float32)


class Senders:
    """The residuals of all senders of a store, by key."""

    def __init__(self) -> None:
        self.residuals: dict[tuple[str, int], np.ndarray] = {}

    def push(self, key: str, gradients: dict[int, np.ndarray]) -> np.ndarray:
        """Return the sum of what some senders send of their gradients."""
        total: np.ndarray = np.zeros(LENGTHS[key], np.float32)
        for sender, array in gradients.items():
            owed = self.residuals.setdefault((key, sender), np.zeros_like(array)) + array
            count = max(1, round(RATIO * owed.size))
            chosen = np.argsort(-np.abs(owed), kind="stable")[:count]
            total[chosen] += owed[chosen]
            owed[chosen] = 0
            self.residuals[key, sender] = owed
        return total

    def check_residuals(self, kv: Any) -> None:
        """Fail unless the residuals of this rank are those of its sender."""
        residuals = context_of(kv).engine.reductions.residuals
        for (key, sender), expected in self.residuals.items():
            if sender == kv.rank:
                np.testing.assert_array_equal(on_host(residuals.all_of(key)[0]), expected, key)


def largest(create: Stores, op: str = "sum", **options: Any) -> Any:
    kv = create(**options)
    kv.set_gradient_compression({"type": "topk", "ratio": RATIO})
    kv.init(list(LENGTHS), [np.zeros(count, np.float32) for count in LENGTHS.values()], op=op)
    return kv


@case()
def the_largest_gradients_are_sent(create: Stores) -> None:
    for op in ("sum", "avg"):
        kv, senders = largest(create, op), Senders()
        ranks = range(kv.num_workers)
        for step in range(4):
            keys = list(LENGTHS) if step % 2 else ["long", "b"]
            kv.push(keys, [gradient(kv.rank, step, key) for key in keys])
            for key in keys:
                gradients = {rank: gradient(rank, step, key) for rank in ranks}
                if key in SENT:
                    wanted = senders.push(key, gradients)
                else:  # its payloads would be longer than the key
                    wanted = np.sum(list(gradients.values()), axis=0, dtype=np.float32)
                check(kv, key, wanted / np.float32(len(ranks)) if op == "avg" else wanted)
        senders.check_residuals(kv)
        assert "not encoded by topk" in kv.explain_plan()


@case()
def blocks_of_the_largest_gradients(create: Stores) -> None:
    kv, senders = largest(create, nonfinite="skip_step"), Senders()
    ranks = range(kv.num_workers)

    def wanted(key: str, step: int) -> np.ndarray:
        return senders.push(key, {rank: gradient(rank, step, key) for rank in ranks})

    with kv.group():
        for key in "w", "long":
            kv.push(key, gradient(kv.rank, 0, key))
    for key in "w", "long":
        check(kv, key, wanted(key, 0))
    spoiled = gradient(kv.rank, 1, "w")
    spoiled[7] = np.inf
    kv.push("w", spoiled)
    kv.wait()
    view = kv.grad_view("w")
    current_buffers().write(view, gradient(kv.rank, 2, "w"))
    kv.push("w", view)
    check(kv, "w", wanted("w", 2))
    senders.check_residuals(kv)


@case()
def drained_ranks_send_none_of_the_largest(create: Stores) -> None:
    check_drained_ranks(largest(create), Senders(), ["w"], gradient=gradient)


@case()
def arrays_of_the_largest_are_senders_in_one_process(create: Stores) -> None:
    kv, senders = largest(create), Senders()
    for step in range(3):
        arrays = {
            rank: [gradient(3 * rank + index, step, "w") for index in range(3)]
            for rank in range(kv.num_workers)
        }
        kv.push("w", arrays[kv.rank])
        if create.name in ALONE:
            check(kv, "w", senders.push("w", dict(enumerate(arrays[0]))))
        else:
            added = {rank: np.sum(each, axis=0) for rank, each in arrays.items()}
            check(kv, "w", senders.push("w", added))
