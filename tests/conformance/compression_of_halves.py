"""Gradients that are rounded to 16 bits, by ranks and by nodes: fp16 on every layout."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tests.conformance.compression import check, gradient, on_host
from tests.conformance.compression_of_nodes import check_nodes, nodes_of
from tests.conformance.registry import case
from tests.conformance.stores import Stores


def half(array: np.ndarray) -> np.ndarray:
    """Return an array rounded to float16."""
    with np.errstate(all="ignore"):
        return array.astype(np.float16).astype(np.float32)


def overwrite(key: str, value: Any, stored: Any) -> None:
    stored[...] = value


@case()
def halves_are_rounded_once_more_after_the_sum(create: Stores) -> None:
    for dtype in (np.float32, np.float64):
        for op in ("sum", "avg", "max"):
            kv = create(reproducible=True)
            kv.set_gradient_compression({"type": "fp16"})
            kv.init(["w", "x"], [np.zeros(5000, dtype), np.zeros(3, dtype)], op=op)
            kv.set_updater(overwrite)
            for step in range(2):
                arrays = [
                    np.random.default_rng([rank, step]).standard_normal(5000).astype(dtype)
                    for rank in range(kv.num_workers)
                ]
                kv.push(["w", "x"], [arrays[kv.rank], np.full(3, 40_000, dtype)])
                parts = [half(array.astype(np.float32)) for array in arrays]
                if op == "max":
                    wanted = np.max(parts, axis=0)
                else:
                    added = parts[0]
                    for part in parts[1:]:
                        added = added + part
                    wanted = half(added / np.float32(kv.num_workers) if op == "avg" else added)
                check(kv, "w", wanted.astype(dtype))
                most = half(np.full(3, 40_000 * (kv.num_workers if op == "sum" else 1.0)))
                check(kv, "x", most.astype(dtype))


@case()
def what_the_rounding_loses_is_kept_if_asked(create: Stores) -> None:
    kv = create(reproducible=True)
    kv.set_gradient_compression({"type": "fp16", "error_feedback": True})
    kv.init("w", np.zeros(3, np.float32))
    kept: np.ndarray = np.zeros(3, np.float32)
    mine = np.full(3, 1 + 2**-13, np.float32)
    for _ in range(9):
        kv.push("w", mine)
        sent = half(kept + mine)
        kept = kept + mine - sent
        check(kv, "w", half(kv.num_workers * sent))
    assert (kept != 0).any()


class HalfNodes:
    """Sums of 16-bit floats of nodes, and what the rounding of each node has lost."""

    def __init__(self, kv: Any, op: str = "sum", *, keeps: bool = False) -> None:
        self.nodes, self._op, self._keeps = nodes_of(kv), op, keeps
        self._lost: dict[tuple[str, int], np.ndarray] = {}

    def push(self, key: str, arrays: Mapping[int, np.ndarray]) -> np.ndarray:
        """Return the sum, average or maximum of what nodes send of the arrays of ranks."""
        parts = []
        for index, ranks in enumerate(self.nodes):
            given = [arrays[rank] for rank in ranks if rank in arrays]
            if not given:
                continue
            total = given[0]
            for array in given[1:]:
                total = np.maximum(total, array) if self._op == "max" else total + array
            if self._op == "avg":
                total = total / total.dtype.type(len(arrays))
            if len(self.nodes) == 1:
                return np.asarray(total)
            owed = total.astype(np.float32)
            if self._keeps:
                owed = owed + self._lost.get((key, index), np.float32(0))
            parts.append(half(owed))
            self._lost[key, index] = owed - parts[-1]
        found = parts[0]
        for part in parts[1:]:
            found = np.maximum(found, part) if self._op == "max" else found + part
        return half(found)


@case()
def nodes_round_their_sums_once(create: Stores) -> None:
    for dtype in (np.float32, np.float64):
        for op in ("sum", "avg", "max"):
            kv = create()
            kv.set_gradient_compression({"type": "fp16", "scope": "node"})
            counts = {"w": 1000, "a": 1, "long": 70_001}
            kv.init([*counts], [np.zeros(count, dtype) for count in counts.values()], op=op)
            kv.set_updater(overwrite)
            model = HalfNodes(kv, op)
            # Alone, "long" of float64 begins at no multiple of 64 elements.
            for step, keys in enumerate([["long", "a"], [*counts], ["long"]]):
                arrays = {
                    key: [
                        np.random.default_rng([rank, step]).standard_normal(count).astype(dtype)
                        for rank in range(kv.num_workers)
                    ]
                    for key, count in counts.items()
                }
                kv.push(keys, [arrays[key][kv.rank] for key in keys])
                for key in keys:
                    wanted = model.push(key, dict(enumerate(arrays[key])))
                    check_nodes(kv, key, wanted.astype(dtype), model.nodes)


@case()
def nodes_keep_what_their_rounding_loses(create: Stores) -> None:
    kv = create()
    kv.set_gradient_compression({"type": "fp16", "scope": "node", "error_feedback": True})
    kv.init(["w", "b"], [np.zeros(1000, np.float32), np.zeros(7, np.float32)])
    model = HalfNodes(kv, keeps=True)
    for step in range(4):
        arrays = {
            key: [
                np.random.default_rng([rank, step]).standard_normal(count).astype(np.float32)
                for rank in range(kv.num_workers)
            ]
            for key, count in (("w", 1000), ("b", 7))
        }
        keys = ["b"] if step == 2 else [*arrays]
        kv.push(keys, [arrays[key][kv.rank] for key in keys])
        for key in keys:
            wanted = model.push(key, dict(enumerate(arrays[key])))
            check_nodes(kv, key, wanted, model.nodes)


@case()
def nodes_of_drained_ranks_round_nothing(create: Stores) -> None:
    for op in ("sum", "avg"):
        kv, found = create(), []
        kv.set_gradient_compression({"type": "fp16", "scope": "node"})
        kv.init("w", np.zeros(1000, np.float32), op=op)
        model = HalfNodes(kv, op)
        with kv.uneven():
            for step in range(1 + kv.rank):
                kv.push("w", gradient(kv.rank, step, "w"))
                found.append(on_host(kv.pull("w")))
        for step in range(len(found)):
            ranks = range(step, kv.num_workers)
            wanted = model.push("w", {rank: gradient(rank, step, "w") for rank in ranks})
            np.testing.assert_allclose(found[step], wanted, rtol=1e-6)
