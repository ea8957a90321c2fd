"""Gradients that nodes compress: the sums of one sender a node, on one node and on several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import ncclkv
from tests.conformance.capabilities import current_buffers
from tests.conformance.compression import (
    CODED,
    LENGTHS,
    TYPES,
    Sums,
    check,
    check_drained_ranks,
    check_missing_pushes,
    gradient,
    on_host,
)
from tests.conformance.registry import case
from tests.conformance.stores import Stores
from tests.harness.context import context_of


def nodes_of(kv: Any) -> Sequence[Sequence[int]]:
    """Return the ranks of each node."""
    nodes = context_of(kv).comm.nodes
    assert nodes is not None
    assert sorted(rank for ranks in nodes for rank in ranks) == [*range(kv.num_workers)]
    return nodes


def added(arrays: Mapping[int, np.ndarray], ranks: Sequence[int]) -> np.ndarray | None:
    """Return the sum of the arrays of some ranks in rank order; None if there are none."""
    total = None
    for rank in ranks:
        if rank in arrays:
            total = arrays[rank] if total is None else total + arrays[rank]
    return total


class NodeSums:
    """The sums of a store whose senders are nodes, by a model of each node."""

    def __init__(self, kv: Any, kind: str, keys: Sequence[str], threshold: float = 0.5) -> None:
        self.nodes, self.size = nodes_of(kv), kv.num_workers
        self.sums = Sums(kind, threshold, keys, len(self.nodes))

    def push(self, key: str, arrays: Mapping[int, np.ndarray]) -> np.ndarray:
        """Return the sum of the arrays that some ranks push."""
        of_nodes = {
            number: total
            for number, ranks in enumerate(self.nodes)
            if (total := added(arrays, ranks)) is not None
        }
        return self.sums.push(key, of_nodes) if len(self.nodes) > 1 else of_nodes[0]

    def step(self, key: str, step: int) -> np.ndarray:
        """Return the sum of a step in which all ranks push."""
        return self.push(key, {rank: gradient(rank, step, key) for rank in range(self.size)})

    def check_residuals(self, kv: Any) -> None:
        """Fail unless the residuals of each node are those of its model; collective."""
        if len(self.nodes) == 1:
            assert context_of(kv).engine.reductions.residuals.nbytes == 0
            return
        owed = {each: model.residual for each, model in self.sums.models.items()}
        check_owed(kv, owed)


def check_nodes(kv: Any, key: str, wanted: np.ndarray, nodes: Sequence[Sequence[int]]) -> None:
    """Fail unless the store has the sum of nodes; one node adds in an order of its own."""
    if len(nodes) > 1:
        check(kv, key, wanted)
    else:
        np.testing.assert_allclose(on_host(kv.pull(key)), wanted, rtol=1e-5, atol=1e-6)


def check_owed(kv: Any, owed: Mapping[tuple[str, int], np.ndarray]) -> dict[str, list[int]]:
    """Fail unless nodes owe these residuals, by key and node; collective.

    Returns
    -------
    dict of list of int
        The ranks that owe elements of each key.
    """
    context = context_of(kv)
    residuals, nodes = context.engine.reductions.residuals, nodes_of(kv)
    keys = {key for key, _ in owed}
    mine = {key: on_host(found[0]) for key in keys if (found := residuals.all_of(key))}
    of_ranks = context.comm.control.allgather(mine, "residuals")
    owing: dict[str, list[int]] = {}
    for (key, node), expected in owed.items():
        parts = {rank: each[key] for rank, each in enumerate(of_ranks) if key in each}
        used = {rank: part != 0 for rank, part in parts.items() if rank in nodes[node]}
        assert (np.sum([*used.values()], axis=0) <= 1).all(), "two ranks of a node owe an element"
        owing.setdefault(key, []).extend(rank for rank, part in used.items() if part.any())
        found = added(parts, nodes[node])
        if found is not None:
            np.testing.assert_array_equal(found, expected, f"{key!r} of node {node}")
    return owing


def compressed(create: Stores, kind: str, keys: Sequence[str] = CODED, **options: Any) -> Any:
    """Return a store with keys whose gradients nodes compress."""
    op = options.pop("op", "sum")
    kv = create(**options)
    kv.set_gradient_compression({"type": kind, "threshold": 0.5, "scope": "node"})
    kv.init(list(keys), [np.zeros(LENGTHS[key], np.float32) for key in keys], op=op)
    return kv


def push(kv: Any, keys: Sequence[str], step: int) -> None:
    """Push this rank's gradients of a step."""
    kv.push(list(keys), [gradient(kv.rank, step, key) for key in keys])


@case()
def sums_and_residuals_are_those_of_one_sender_a_node(create: Stores) -> None:
    for kind in TYPES:
        for nbytes in (0, 4096, 1 << 20):
            kv = compressed(create, kind, bucket_bytes=nbytes)
            sums = NodeSums(kv, kind, CODED)
            draw = np.random.default_rng(nbytes)
            for step in range(6):
                # Other keys at each push: the ranges of the buckets change, the slices do not.
                keys = CODED if step == 0 else [key for key in CODED if draw.random() < 0.5]
                push(kv, keys, step)
                for key in keys:
                    check(kv, key, sums.step(key, step))
            sums.check_residuals(kv)


@case()
def arrays_of_a_node_are_added_in_rank_order(create: Stores) -> None:
    kv, dense = compressed(create, "2bit", ["long"]), create()
    dense.init("long", np.zeros(LENGTHS["long"], np.float32))
    sums = NodeSums(kv, "2bit", ["long"])
    for step in range(3):
        arrays = {
            rank: np.random.default_rng([rank, step])
            .standard_normal(LENGTHS["long"])
            .astype(np.float32)
            for rank in range(kv.num_workers)
        }
        for store in kv, dense:
            store.push("long", arrays[kv.rank])
        check(kv, "long", sums.push("long", arrays))
        if len(sums.nodes) == 1:
            check(kv, "long", on_host(dense.pull("long")))
    sums.check_residuals(kv)


@case()
def an_optimizer_gets_the_sums_of_nodes(create: Stores) -> None:
    for kind in TYPES:
        kv, plain = compressed(create, kind), create()
        plain.init(list(CODED), [np.zeros(LENGTHS[key], np.float32) for key in CODED])
        for store in kv, plain:
            store.set_optimizer(ncclkv.optimizer.SGD(learning_rate=0.5, momentum=0.5))
        sums = NodeSums(kv, kind, CODED)
        for step in range(3):
            push(kv, CODED, step)
            totals = [sums.step(key, step) for key in CODED]
            plain.push(list(CODED), [total if kv.rank == 0 else 0 * total for total in totals])
            for key in CODED:
                check(kv, key, on_host(plain.pull(key)))
        sums.check_residuals(kv)


@case()
def averages_of_nodes_are_divided_by_ranks(create: Stores) -> None:
    kv = compressed(create, "2bit", ["c", "long"], op="avg")
    sums = NodeSums(kv, "2bit", ["c", "long"])
    for step in range(3):
        push(kv, ["c", "long"], step)
        for key in "c", "long":
            check(kv, key, sums.step(key, step) / np.float32(kv.num_workers))


@case()
def blocks_and_views_of_what_nodes_compress(create: Stores) -> None:
    kv = compressed(create, "1bit")
    sums = NodeSums(kv, "1bit", CODED)
    with kv.group():
        for key in "w", "long", "a":
            kv.push(key, gradient(kv.rank, 0, key))
    with kv.overlap(["a", "b"]):
        for key in "ab" if kv.rank % 2 else "ba":
            kv.push(key, gradient(kv.rank, 1, key))
    for key, step in ("w", 0), ("long", 0), ("b", 1):
        check(kv, key, sums.step(key, step))
    sums.step("a", 0)
    check(kv, "a", sums.step("a", 1))
    view = kv.grad_view("w")
    current_buffers().write(view, gradient(kv.rank, 2, "w"))
    kv.push("w", view)
    check(kv, "w", sums.step("w", 2))
    sums.check_residuals(kv)


@case()
def a_skipped_flush_leaves_residuals_of_nodes(create: Stores) -> None:
    kv = compressed(create, "2bit", nonfinite="skip_step")
    sums = NodeSums(kv, "2bit", CODED)
    for step in range(3):
        mine = gradient(kv.rank, step, "long")
        if step == 1 and kv.rank == kv.num_workers - 1:
            mine[3] = np.nan
        kv.push(["long", "b"], [mine, gradient(kv.rank, step, "b")])
        kv.wait()
        if step != 1:
            check(kv, "long", sums.step("long", step))
            check(kv, "b", sums.step("b", step))
    assert kv.skipped == 1
    sums.check_residuals(kv)


@case()
def a_node_adds_zeros_for_a_missing_push(create: Stores) -> None:
    for kind in TYPES:
        kv = compressed(create, kind, missing="zeros")
        check_missing_pushes(kv, NodeSums(kv, kind, CODED))


@case()
def a_node_of_drained_ranks_sends_nothing(create: Stores) -> None:
    for kind in TYPES:
        for op in ("sum", "avg"):
            kv = compressed(create, kind, ["w", "long"], op=op)
            check_drained_ranks(kv, NodeSums(kv, kind, ["w", "long"]), ["w", "long"], op)


@case()
def later_keys_leave_residuals_of_nodes_in_place(create: Stores) -> None:
    kv = create()
    kv.set_gradient_compression({"type": "2bit", "scope": "node"})
    sums = NodeSums(kv, "2bit", CODED)
    known: list[str] = []
    for step, key in enumerate(key for key in CODED if key != "long"):
        kv.init(key, np.zeros(LENGTHS[key], np.float32))
        known.append(key)
        push(kv, known, step)
        for each in known:
            check(kv, each, sums.step(each, step))
    sums.check_residuals(kv)


@case()
def another_scope_drops_residuals(create: Stores) -> None:
    kv = compressed(create, "2bit", ["w"])
    sums = NodeSums(kv, "2bit", ["w"])
    push(kv, ["w"], 0)
    check(kv, "w", sums.step("w", 0))
    assert kv.gradient_compression("w")["scope"] == "node"
    kv.set_gradient_compression({"type": "2bit"})
    each = Sums("2bit", 0.5, ["w"], kv.num_workers)
    push(kv, ["w"], 1)
    check(kv, "w", each.step("w", 1))
    kv.set_gradient_compression({"type": "2bit", "scope": "node"})
    sums = NodeSums(kv, "2bit", ["w"])
    push(kv, ["w"], 2)
    check(kv, "w", sums.step("w", 2))
    sums.check_residuals(kv)


@case()
def a_plan_names_keys_that_one_node_does_not_encode(create: Stores) -> None:
    kv = compressed(create, "2bit", ["w"])
    push(kv, ["w"], 0)
    plan = kv.explain_plan()
    alone = "not encoded by 2bit, whose senders are nodes: all ranks are on one node: 'w'"
    several = len(nodes_of(kv)) > 1
    assert (alone in plan) == (not several)
    assert ("\nencoded by 2bit: 'w'" in plan) == several
    assert ("residuals:" in plan) == several
