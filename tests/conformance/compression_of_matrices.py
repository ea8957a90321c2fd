"""Gradients that are sent as products of narrow matrices: powersgd on every layout."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np

import ncclkv
from ncclkv.engine.power_reduction import PowerReduction
from ncclkv.store.backends import ALONE
from tests.conformance.capabilities import current_buffers
from tests.conformance.compression import on_host
from tests.conformance.registry import case
from tests.conformance.stores import Stores
from tests.harness.context import context_of

SHAPES: dict[str, tuple[int, ...]] = {
    "w": (60, 50),
    "bias": (60,),
    "empty": (0, 4),
    "conv": (24, 40, 3, 3),
    "one": (),
    "tall": (9000, 2),
}
"""The sum of P and of short keys of "tall" is made in two steps, and that of "w" in one."""

NUMBER = 2
START = 2


def gradient(rank: int, step: int, key: str) -> np.ndarray:
    """Return a rank's gradient, of eighths, so that sums are exact."""
    rng = np.random.default_rng([rank, step, *key.encode()])
    return np.asarray(rng.integers(-40, 41, SHAPES[key]) / 8, np.float32)


class Matrix:
    """A key in float64: its residuals by sender, and the last Q by its columns."""

    def __init__(self, key: str, start: int) -> None:
        self.shape = SHAPES[key]
        self.start, self.launches = start, 0
        rows = self.shape[0] if self.shape else 1
        columns = int(np.prod(self.shape[1:]))
        self.is_compressed = rows * columns > 2 * NUMBER * (rows + columns)
        rng = np.random.default_rng((0, zlib.crc32(key.encode())))
        if self.is_compressed:
            self.q = rng.standard_normal((NUMBER, columns), np.float32).T.astype(np.float64)
        self.residuals: dict[int, np.ndarray] = {}

    def push(self, gradients: dict[int, np.ndarray]) -> np.ndarray:
        """Return the sum of what some senders send."""
        self.launches += 1
        if not self.is_compressed or self.launches <= self.start:
            return np.sum([*gradients.values()], axis=0, dtype=np.float64)
        owed = {
            sender: self.residuals.get(sender, 0) + array.reshape(len(array), -1)
            for sender, array in gradients.items()
        }
        total = np.sum([*owed.values()], axis=0)
        p = np.linalg.qr(total @ self.q)[0]
        self.q = total.T @ p
        found: np.ndarray = p @ self.q.T
        for sender, matrix in owed.items():
            self.residuals[sender] = matrix - found / len(owed)
        return found.reshape(self.shape)


class Model:
    """All keys of a store."""

    def __init__(self, start: int = START) -> None:
        self.keys = {key: Matrix(key, start) for key in SHAPES}

    def push(self, key: str, gradients: dict[int, np.ndarray]) -> np.ndarray:
        return self.keys[key].push(gradients)

    def step(self, kv: Any, key: str, step: int) -> np.ndarray:
        """Return the sum of a step in which all ranks push."""
        return self.push(key, {rank: gradient(rank, step, key) for rank in range(kv.num_workers)})

    def check_residuals(self, kv: Any) -> None:
        """Fail unless the residuals of this rank are those of its sender."""
        kv.wait()
        kept = context_of(kv).engine.reductions.residuals
        for key, matrix in self.keys.items():
            for sender, expected in matrix.residuals.items():
                if sender == kv.rank:
                    close(on_host(kept.all_of(key)[0]).reshape(expected.shape), expected, key)


def close(found: np.ndarray, expected: np.ndarray, key: str) -> None:
    """Fail unless arrays differ by little, compared with their norm."""
    assert found.shape == expected.shape
    off = np.linalg.norm(found - expected)
    assert off <= 1e-3 * (1 + np.linalg.norm(expected)), f"key {key!r}: the error is {off}"


def check(kv: Any, key: str, expected: np.ndarray) -> None:
    """Fail unless a pull returns the sum expected, with the same bits on all ranks."""
    found = on_host(kv.pull(key))
    matrix_is_sent = expected.size > 60  # else the sum is exact
    if matrix_is_sent:
        close(found, expected, key)
    else:
        np.testing.assert_array_equal(found, expected.astype(np.float32), key)
    digests = context_of(kv).comm.control.allgather(zlib.crc32(found.tobytes()), "a digest")
    assert len(set(digests)) == 1, f"key {key!r}: {digests}"


def narrow(create: Stores, op: str = "sum", start: int = START, **options: Any) -> Any:
    kv = create(**options)
    kv.set_gradient_compression({"type": "powersgd", "rank": NUMBER, "start_powerSGD_iter": start})
    kv.init(list(SHAPES), [np.zeros(shape, np.float32) for shape in SHAPES.values()], op=op)
    return kv


@case()
def matrices_are_sent_as_products(create: Stores) -> None:
    for op, nbytes in ("sum", 0), ("sum", 1 << 20), ("avg", 1 << 20):
        kv, model = narrow(create, op, bucket_bytes=nbytes), Model()
        for step in range(6):
            # The launches of keys differ, so that some are compressed before others.
            keys = list(SHAPES) if step % 2 else ["bias", "conv", "tall"]
            kv.push(keys, [gradient(kv.rank, step, key) for key in keys])
            for key in keys:
                total = model.step(kv, key, step)
                check(kv, key, total / np.float32(kv.num_workers) if op == "avg" else total)
        model.check_residuals(kv)
        plan = kv.explain_plan()
        assert "encoded by powersgd: 'w', 'conv'" in plan
        assert "not encoded by powersgd" in plan


@case()
def first_sums_are_exact(create: Stores) -> None:
    kv = narrow(create)
    for step in range(START):
        kv.push(list(SHAPES), [gradient(kv.rank, step, key) for key in SHAPES])
        for key in SHAPES:
            total = np.sum([gradient(rank, step, key) for rank in range(kv.num_workers)], axis=0)
            np.testing.assert_array_equal(on_host(kv.pull(key)), total.astype(np.float32), key)


@case()
def an_optimizer_gets_the_products(create: Stores) -> None:
    kv, model = narrow(create, start=0), Model(start=0)
    kv.set_optimizer(ncclkv.optimizer.SGD(learning_rate=0.5))
    values = {key: np.zeros(shape) for key, shape in SHAPES.items()}
    for step in range(3):
        kv.push(list(SHAPES), [gradient(kv.rank, step, key) for key in SHAPES])
        for key in SHAPES:
            values[key] -= 0.5 * model.step(kv, key, step)
            check(kv, key, values[key])


@case()
def blocks_and_views_of_matrices(create: Stores) -> None:
    kv, model = narrow(create, start=1, nonfinite="skip_step"), Model(start=1)
    with kv.group():
        for key in "w", "tall", "bias":
            kv.push(key, gradient(kv.rank, 0, key))
    for key in "w", "tall", "bias":
        check(kv, key, model.step(kv, key, 0))
    spoiled = gradient(kv.rank, 1, "w")
    spoiled[7, 0] = np.inf
    kv.push("w", spoiled)  # its flush is skipped, and counts as no launch
    kv.wait()
    with kv.overlap(["bias", "w", "conv"]):
        for key in ("w", "bias", "conv") if kv.rank % 2 else ("conv", "bias", "w"):
            kv.push(key, gradient(kv.rank, 2, key))
    for key in "w", "bias", "conv":
        check(kv, key, model.step(kv, key, 2))
    view = kv.grad_view("conv")
    current_buffers().write(view, gradient(kv.rank, 3, "conv"))
    kv.push("conv", view)
    check(kv, "conv", model.step(kv, "conv", 3))
    model.check_residuals(kv)


@case()
def drained_ranks_follow_the_products(create: Stores) -> None:
    for op in ("sum", "avg"):
        kv, model, found = narrow(create, op, start=1), Model(start=1), []
        with kv.uneven():
            for step in range(1 + kv.rank):
                kv.push(["w", "bias"], [gradient(kv.rank, step, key) for key in ("w", "bias")])
                found.append([on_host(kv.pull(key)) for key in ("w", "bias")])
        for step in range(kv.num_workers):
            senders = range(step, kv.num_workers)
            for index, key in enumerate(["w", "bias"]):
                total = model.push(key, {rank: gradient(rank, step, key) for rank in senders})
                if step < len(found):
                    close(found[step][index], total / (len(senders) if op == "avg" else 1), key)
        model.check_residuals(kv)
        for step in range(9, 11):  # all ranks have the Q of the last sum
            kv.push("w", gradient(kv.rank, step, "w"))
            total = model.step(kv, "w", step)
            check(kv, "w", total / kv.num_workers if op == "avg" else total)


@case()
def a_missing_matrix_counts_as_zeros(create: Stores) -> None:
    kv, model = narrow(create, start=0, missing="zeros"), Model(start=0)
    for step in range(3):
        late = step % kv.num_workers
        gradients = {rank: gradient(rank, step, "w") for rank in range(kv.num_workers)}
        if kv.num_workers > 1:
            gradients[late] = np.zeros(SHAPES["w"], np.float32)
        if kv.rank != late or kv.num_workers == 1:
            kv.push("w", gradients[kv.rank])
        kv.push("bias", gradient(kv.rank, step, "bias"))
        kv.wait()
        check(kv, "w", model.push("w", gradients))
        check(kv, "bias", model.step(kv, "bias", step))
    model.check_residuals(kv)


@case()
def several_matrices_of_a_key(create: Stores) -> None:
    kv, model = narrow(create, start=1), Model(start=1)
    for step in range(4):
        for key in "w", "bias":
            arrays = {
                rank: [gradient(3 * rank + index, step, key) for index in range(3)]
                for rank in range(kv.num_workers)
            }
            kv.push(key, arrays[kv.rank])
            if create.name in ALONE:
                check(kv, key, model.push(key, dict(enumerate(arrays[0]))))
            else:
                added = {rank: np.sum(each, axis=0) for rank, each in arrays.items()}
                check(kv, key, model.push(key, added))


@case()
def a_reset_matrix_begins_again(create: Stores) -> None:
    kv, model = narrow(create, start=1), Model(start=1)
    for step in range(3):
        kv.push("w", gradient(kv.rank, step, "w"))
        check(kv, "w", model.step(kv, "w", step))
    kv.reset("w", np.zeros(SHAPES["w"], np.float32))
    model = Model(start=1)
    for step in range(3):
        kv.push("w", gradient(kv.rank, step, "w"))
        check(kv, "w", model.step(kv, "w", step))
    model.check_residuals(kv)


@case()
def a_matrix_sent_whole_beside_others_sends_no_old_factors(create: Stores) -> None:
    kv = narrow(create, start=1)
    for step in range(3):
        kv.push(list(SHAPES), [gradient(kv.rank, step, key) for key in SHAPES])
        kv.wait()
    kv.reset("w", np.zeros(SHAPES["w"], np.float32))
    kv.push(list(SHAPES), [gradient(kv.rank, 3, key) for key in SHAPES])
    check(kv, "w", Model(start=1).step(kv, "w", 3))
    reduction = context_of(kv).engine.layout["w"].state.coded["w"]
    if isinstance(reduction, PowerReduction):
        arrays, place = reduction._arrays, reduction._places["w"]
        for part in arrays.first[place.first], arrays.second[place.second]:
            assert not on_host(part).any()


@case()
def other_numbers_of_columns_keep_residuals(create: Stores) -> None:
    kv, model = narrow(create, start=0), Model(start=0)
    kv.push("w", gradient(kv.rank, 0, "w"))
    check(kv, "w", model.step(kv, "w", 0))
    parameters = {"type": "powersgd", "rank": 1, "start_powerSGD_iter": 0}
    kv.set_gradient_compression(parameters)
    model.check_residuals(kv)
    kv.push("w", gradient(kv.rank, 1, "w"))
    assert np.linalg.matrix_rank(on_host(kv.pull("w")), tol=1e-3) == 1
    assert kv.gradient_compression("w")["matrix_approximation_rank"] == 1


@case()
def nodes_as_senders_of_matrices(create: Stores) -> None:
    found = []
    for scope in ("rank", "node"):
        kv = create()
        kv.set_gradient_compression({"type": "powersgd", "start_powerSGD_iter": 1, "scope": scope})
        kv.init(["w", "bias"], [np.zeros(SHAPES[key], np.float32) for key in ("w", "bias")])
        for step in range(3):
            kv.push(["w", "bias"], [gradient(kv.rank, step, key) for key in ("w", "bias")])
        found.append([on_host(value).tobytes() for value in kv.pull(["w", "bias"])])
    total = np.sum([gradient(rank, 2, "w") for rank in range(kv.num_workers)], axis=0)
    several = len(context_of(kv).comm.nodes or [range(kv.num_workers)]) > 1
    assert (found[0] == found[1]) == several
    assert (found[1][0] == total.astype(np.float32).tobytes()) == (not several)


@case()
def matrices_without_residuals(create: Stores) -> None:
    kv = create()
    kv.set_gradient_compression(
        {"type": "powersgd", "start_powerSGD_iter": 0, "use_error_feedback": False}
    )
    kv.init("w", np.zeros((60, 50), np.float32))
    matrix = np.outer(np.arange(60), np.arange(50)).astype(np.float32)
    for _ in range(2):
        kv.push("w", matrix)
        close(on_host(kv.pull("w")), matrix * np.float32(kv.num_workers), "w")
    assert context_of(kv).engine.reductions.residuals.nbytes == 0
    kv.push("w", 0 * matrix)
    assert not on_host(kv.pull("w")).any()
    kv.push("w", matrix)  # a sum of zeros has not lost the way
    close(on_host(kv.pull("w")), matrix * np.float32(kv.num_workers), "w")
