"""Gradients of which nodes send the largest: topk on nodes of every size, against a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import ncclkv
from tests.conformance.capabilities import current_buffers
from tests.conformance.compression import (
    check,
    check_drained_ranks,
    check_missing_pushes,
    on_host,
)
from tests.conformance.compression_of_largest import LENGTHS, RATIO, SENT, Senders, gradient
from tests.conformance.compression_of_nodes import added, check_nodes, check_owed, nodes_of
from tests.conformance.registry import case
from tests.conformance.stores import Stores
from tests.harness.context import context_of


class Nodes:
    """The sums of a store whose nodes send the largest gradients, by a model of each node."""

    def __init__(self, kv: Any) -> None:
        self.nodes, self.size = nodes_of(kv), kv.num_workers
        self.senders = Senders()

    def push(self, key: str, arrays: Mapping[int, np.ndarray]) -> np.ndarray:
        """Return the sum of what nodes send of the arrays that some ranks push."""
        of_nodes = {
            number: total
            for number, ranks in enumerate(self.nodes)
            if (total := added(arrays, ranks)) is not None
        }
        if len(self.nodes) > 1 and key in SENT:
            return self.senders.push(key, of_nodes)
        return np.sum([*of_nodes.values()], axis=0, dtype=np.float32)

    def step(self, key: str, step: int) -> np.ndarray:
        """Return the sum of a step in which all ranks push."""
        return self.push(key, {rank: gradient(rank, step, key) for rank in range(self.size)})

    def check_residuals(self, kv: Any) -> None:
        """Fail unless each node owes what its model does, of a key on one rank; collective."""
        if len(self.nodes) == 1:
            assert context_of(kv).engine.reductions.residuals.nbytes == 0
            return
        for ranks in check_owed(kv, self.senders.residuals).values():
            assert all(len({*ranks}.intersection(node)) <= 1 for node in self.nodes)


def largest(create: Stores, op: str = "sum", **options: Any) -> Any:
    kv = create(**options)
    kv.set_gradient_compression({"type": "topk", "ratio": RATIO, "scope": "node"})
    kv.init(list(LENGTHS), [np.zeros(count, np.float32) for count in LENGTHS.values()], op=op)
    return kv


def push(kv: Any, keys: Sequence[str], step: int) -> None:
    """Push this rank's gradients of a step."""
    kv.push(list(keys), [gradient(kv.rank, step, key) for key in keys])


@case()
def nodes_send_the_largest_of_their_sums(create: Stores) -> None:
    for op in ("sum", "avg"):
        for nbytes in (0, 4096, 1 << 20):
            kv = largest(create, op, bucket_bytes=nbytes)
            sums, draw = Nodes(kv), np.random.default_rng(nbytes)
            for step in range(5):
                # Other keys at each push: the ranges of the buckets change, the owners do not.
                keys = [key for key in LENGTHS if step == 0 or draw.random() < 0.6]
                push(kv, keys, step)
                for key in keys:
                    wanted = sums.step(key, step)
                    check(kv, key, wanted / np.float32(sums.size) if op == "avg" else wanted)
            sums.check_residuals(kv)


@case()
def nodes_add_before_they_choose(create: Stores) -> None:
    kv = largest(create)
    sums = Nodes(kv)
    for step in range(3):
        arrays = {
            rank: np.random.default_rng([rank, step])
            .standard_normal(LENGTHS["long"])
            .astype(np.float32)
            for rank in range(kv.num_workers)
        }
        kv.push("long", arrays[kv.rank])
        check_nodes(kv, "long", sums.push("long", arrays), sums.nodes)
    sums.check_residuals(kv)


@case()
def an_optimizer_gets_the_largest_of_nodes(create: Stores) -> None:
    kv, plain = largest(create), create()
    plain.init(list(LENGTHS), [np.zeros(count, np.float32) for count in LENGTHS.values()])
    for store in kv, plain:
        store.set_optimizer(ncclkv.optimizer.SGD(learning_rate=0.5, momentum=0.5))
    sums = Nodes(kv)
    for step in range(3):
        push(kv, list(LENGTHS), step)
        totals = [sums.step(key, step) for key in LENGTHS]
        plain.push(list(LENGTHS), [total if kv.rank == 0 else 0 * total for total in totals])
        for key in LENGTHS:
            check(kv, key, on_host(plain.pull(key)))
    sums.check_residuals(kv)


@case()
def blocks_of_the_largest_of_nodes(create: Stores) -> None:
    kv = largest(create, nonfinite="skip_step")
    sums = Nodes(kv)
    with kv.group():
        for key in "w", "long":
            kv.push(key, gradient(kv.rank, 0, key))
    for key in "w", "long":
        check(kv, key, sums.step(key, 0))
    spoiled = gradient(kv.rank, 1, "w")
    if kv.rank == kv.num_workers - 1:
        spoiled[7] = np.nan
    kv.push("w", spoiled)
    kv.wait()
    assert kv.skipped == 1
    view = kv.grad_view("w")
    current_buffers().write(view, gradient(kv.rank, 2, "w"))
    kv.push("w", view)
    check(kv, "w", sums.step("w", 2))
    with kv.overlap(["w", "b"]):
        for key in "wb" if kv.rank % 2 else "bw":
            kv.push(key, gradient(kv.rank, 3, key))
    for key in "wb":
        check(kv, key, sums.step(key, 3))
    sums.check_residuals(kv)
    kv.reset("w", np.ones(LENGTHS["w"], np.float32))
    for number in range(len(sums.nodes)):
        sums.senders.residuals.pop(("w", number), None)
    push(kv, ["w"], 4)
    check(kv, "w", sums.step("w", 4))


@case()
def a_node_sends_the_largest_if_any_of_its_ranks_does(create: Stores) -> None:
    kv = largest(create, missing="zeros")
    check_missing_pushes(kv, Nodes(kv), "b", gradient)
    for op in ("sum", "avg"):
        kv = largest(create, op)
        check_drained_ranks(kv, Nodes(kv), ["w", "long"], op, gradient)


@case()
def nodes_are_counted_where_payloads_are_too_long(create: Stores) -> None:
    kv = create()
    kv.set_gradient_compression({"type": "topk", "ratio": 0.3, "scope": "node"})
    kv.init("w", np.zeros(LENGTHS["w"], np.float32))
    nodes = len(nodes_of(kv))
    plan = kv.explain_plan()
    assert ("encoded by topk: 'w'" in plan) == (1 < nodes < 4)
    short = "not encoded by topk, which would not make them short enough: 'w'"
    assert (short in plan) == (nodes > 3)
    assert ("topk, whose senders are nodes: all ranks are on one node: 'w'" in plan) == (nodes < 2)
