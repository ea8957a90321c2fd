"""Gradients that are compressed: the sums and residuals of MXNet's arithmetic on every layout."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import ncclkv
from ncclkv.engine.bucket_push import LENT_FROM_BYTES
from ncclkv.errors import (
    DTypeMismatch,
    NotSupported,
    SpecMismatch,
    UnknownArgument,
    UsageError,
)
from ncclkv.store.backends import ALONE
from tests.codecs import MODELS, Model
from tests.conformance.capabilities import current_buffers
from tests.conformance.expect import check_words, full, refused, same
from tests.conformance.registry import SEVERAL, case
from tests.conformance.stores import Stores
from tests.harness.context import context_of

LENGTHS = {"w": 1000, "a": 1, "b": 7, "empty": 0, "long": 70_001, "bias": 70, "c": 64}
"""The payload of the longest is sent in two steps, where several nodes have four ranks."""

TYPES = ("1bit", "2bit")


def gradient(rank: int, step: int, key: str) -> np.ndarray:
    """Return a rank's gradient, of eighths, so that residuals are exact."""
    seed = [rank, step, *key.encode()]
    found = np.random.default_rng(seed).integers(-12, 13, LENGTHS[key]) / 8
    return found.astype(np.float32)


class Sums:
    """The sums of a store, by a model of each sender.

    Parameters
    ----------
    kind : str
    threshold : float
    keys : sequence of str
    senders : int
    """

    def __init__(self, kind: str, threshold: float, keys: Sequence[str], senders: int) -> None:
        self.models: dict[tuple[str, int], Model] = {
            (key, sender): MODELS[kind](threshold, LENGTHS[key])
            for key in keys
            for sender in range(senders)
        }
        self.senders = senders

    def push(self, key: str, gradients: dict[int, np.ndarray]) -> np.ndarray:
        """Return the sum of what some senders send of their gradients."""
        step = np.float32(0)
        count: np.ndarray = np.zeros(LENGTHS[key], np.int64)
        for sender, array in gradients.items():
            model = self.models[key, sender]
            count += model.push(array)[1]
            step = np.float32(model.step)
        return count.astype(np.float32) * step

    def step(self, key: str, step: int) -> np.ndarray:
        """Return the sum of a step in which all ranks push."""
        return self.push(key, {rank: gradient(rank, step, key) for rank in range(self.senders)})

    def check_residuals(self, kv: Any) -> None:
        """Fail unless the residuals of this rank are those of its model."""
        residuals = context_of(kv).engine.reductions.residuals
        for (key, sender), model in self.models.items():
            if sender == kv.rank:
                (found,) = residuals.all_of(key) or [np.zeros(0, np.float32)]
                np.testing.assert_array_equal(
                    on_host(found), model.residual, f"residual of {key!r}"
                )


def compressed(create: Stores, kind: str, threshold: float = 0.5, **options: Any) -> Any:
    """Return a store with all keys, whose gradients are compressed, but those of biases."""
    kv = create(**options)
    kv.set_gradient_compression({"type": kind, "threshold": threshold})
    kv.set_gradient_compression(None, keys="bia*")
    kv.init(list(LENGTHS), [np.zeros(count, np.float32) for count in LENGTHS.values()])
    return kv


def on_host(array: Any) -> np.ndarray:
    """Return an array of a store in host memory."""
    return np.asarray(current_buffers().get(array))


def check(kv: Any, key: str, expected: np.ndarray) -> None:
    """Fail unless a pull of a key returns the sum expected."""
    found = on_host(kv.pull(key))
    np.testing.assert_array_equal(found, expected, f"key {key!r} on rank {kv.rank}")


def check_missing_pushes(
    kv: Any,
    sums: Any,
    other: str = "c",
    gradient: Callable[[int, int, str], np.ndarray] = gradient,
) -> None:
    """Push "w" and another key; one rank leaves out "w".  `sums` has the model's `push`."""
    ranks = range(kv.num_workers)
    for step in range(3):
        late = step % kv.num_workers
        if kv.rank != late or kv.num_workers == 1:
            kv.push("w", gradient(kv.rank, step, "w"))
        kv.push(other, gradient(kv.rank, step, other))
        kv.wait()
        arrays = {rank: gradient(rank, step, "w") for rank in ranks}
        if kv.num_workers > 1:
            arrays[late] = np.zeros(LENGTHS["w"], np.float32)
        check(kv, "w", sums.push("w", arrays))
        check(kv, other, sums.push(other, {rank: gradient(rank, step, other) for rank in ranks}))
    sums.check_residuals(kv)


def check_drained_ranks(
    kv: Any,
    sums: Any,
    keys: Sequence[str],
    op: str = "sum",
    gradient: Callable[[int, int, str], np.ndarray] = gradient,
) -> None:
    """Push keys in a block in which rank r has r + 1 batches; `sums` has the model's `push`."""
    found = []
    with kv.uneven():
        for step in range(1 + kv.rank):
            kv.push(list(keys), [gradient(kv.rank, step, key) for key in keys])
            found.append([on_host(kv.pull(key)) for key in keys])
    for step in range(kv.num_workers):
        ranks = range(step, kv.num_workers)
        for index, key in enumerate(keys):
            wanted = sums.push(key, {rank: gradient(rank, step, key) for rank in ranks})
            if op == "avg":
                wanted = wanted / np.float32(len(ranks))
            if step < len(found):
                np.testing.assert_array_equal(found[step][index], wanted)
    sums.check_residuals(kv)


CODED = [key for key in LENGTHS if key != "bias"]


@case()
def sums_and_residuals_are_those_of_the_model(create: Stores) -> None:
    for kind in TYPES:
        for nbytes in (0, 4096, 1 << 20):
            kv = compressed(create, kind, bucket_bytes=nbytes)
            sums = Sums(kind, 0.5, CODED, kv.num_workers)
            for step in range(4):
                keys = list(LENGTHS) if step % 2 else ["c", "bias", "long", "a"]
                kv.push(keys, [gradient(kv.rank, step, key) for key in keys])
                for key in keys:
                    expected = (
                        sums.step(key, step)
                        if key in CODED
                        else sum(gradient(rank, step, key) for rank in range(kv.num_workers))
                    )
                    check(kv, key, expected)
            sums.check_residuals(kv)


@case()
def an_optimizer_gets_the_decoded_sums(create: Stores) -> None:
    for kind in TYPES:
        kv, plain = compressed(create, kind), create()
        plain.init(list(LENGTHS), [np.zeros(count, np.float32) for count in LENGTHS.values()])
        for store in kv, plain:
            store.set_optimizer(ncclkv.optimizer.SGD(learning_rate=0.5, momentum=0.5))
        sums = Sums(kind, 0.5, CODED, kv.num_workers)
        for step in range(3):
            kv.push(CODED, [gradient(kv.rank, step, key) for key in CODED])
            totals = [sums.step(key, step) for key in CODED]
            plain.push(CODED, [total if kv.rank == 0 else 0 * total for total in totals])
            for key in CODED:
                check(kv, key, on_host(plain.pull(key)))


@case()
def averages_are_divided_last(create: Stores) -> None:
    kv = create()
    kv.set_gradient_compression({"type": "2bit", "threshold": 0.5})
    kv.init("c", np.zeros(64, np.float32), op="avg")
    sums = Sums("2bit", 0.5, ["c"], kv.num_workers)
    for step in range(3):
        kv.push("c", gradient(kv.rank, step, "c"))
        check(kv, "c", sums.step("c", step) / np.float32(kv.num_workers))


@case()
def pushes_of_blocks_and_views(create: Stores) -> None:
    for kind in TYPES:
        kv = compressed(create, kind)
        sums = Sums(kind, 0.5, CODED, kv.num_workers)
        with kv.group():
            for key in "w", "long", "a":
                kv.push(key, gradient(kv.rank, 0, key))
        for key in "w", "long", "a":
            check(kv, key, sums.step(key, 0))
        with kv.overlap(["a", "w", "bias"]):
            for key in ("w", "bias", "a") if kv.rank % 2 else ("a", "bias", "w"):
                kv.push(key, gradient(kv.rank, 1, key))
        for key in "w", "a":
            check(kv, key, sums.step(key, 1))
        view = kv.grad_view("w")
        current_buffers().write(view, gradient(kv.rank, 2, "w"))
        kv.push("w", view)
        check(kv, "w", sums.step("w", 2))
        sums.check_residuals(kv)


@case(in_host_memory=True)
def arrays_may_be_written_after_a_push(create: Stores) -> None:
    counts = {"w": 1000, "large": LENT_FROM_BYTES // 4, "b": 7}
    for kind in TYPES:
        kv = create()
        kv.set_gradient_compression({"type": kind, "threshold": 0.5})
        kv.init([*counts], [np.zeros(count, np.float32) for count in counts.values()])
        arrays = [np.empty(count, np.float32) for count in counts.values()]
        strided = [np.empty(2 * count, np.float32)[::2] for count in counts.values()]
        models = [MODELS[kind](0.5, 1) for _ in range(kv.num_workers)]
        for step in range(4):
            pushed = strided if step == 2 else arrays
            for array in pushed:
                array[...] = (kv.rank + step) / 8
            kv.push([*counts], pushed)
            for array in pushed:
                array[...] = np.nan
            sent = sum(
                model.push(np.full(1, (rank + step) / 8, np.float32))[1][0]
                for rank, model in enumerate(models)
            )
            for value in kv.pull([*counts]):
                assert (value == np.float32(sent * models[0].step)).all()


def group_that_raises(kv: Any) -> None:
    with kv.group():
        kv.push("w", gradient(kv.rank, 0, "w"))
        kv.push("a", [gradient(kv.rank, 0, "a")] * 2)
        raise ZeroDivisionError


def block_that_raises(kv: Any) -> None:
    with kv.overlap(["w", "a"]):
        kv.push("a", [gradient(kv.rank, 0, "a")] * 2)
        raise ZeroDivisionError


@case()
def a_dropped_push_leaves_residuals(create: Stores) -> None:
    kv = compressed(create, "2bit")
    sums = Sums("2bit", 0.5, CODED, kv.num_workers)
    for raises in group_that_raises, block_that_raises:
        with pytest.raises(ZeroDivisionError):
            raises(kv)
    for step in range(2):
        kv.push(["w", "a"], [gradient(kv.rank, step, "w"), gradient(kv.rank, step, "a")])
        check(kv, "w", sums.step("w", step))
        check(kv, "a", sums.step("a", step))


@case()
def a_skipped_flush_leaves_residuals(create: Stores) -> None:
    kv = compressed(create, "2bit", nonfinite="skip_step")
    sums = Sums("2bit", 0.5, CODED, kv.num_workers)
    for step in range(3):
        mine = gradient(kv.rank, step, "w")
        if step == 1:
            if kv.rank == kv.num_workers - 1:
                mine[3] = np.nan
            kv.push(["w", "b"], [mine, gradient(kv.rank, step, "b")])
            kv.wait()
            assert kv.skipped == 1
        else:
            kv.push(["w", "b"], [mine, gradient(kv.rank, step, "b")])
            check(kv, "w", sums.step("w", step))
            check(kv, "b", sums.step("b", step))
    sums.check_residuals(kv)


@case()
def a_missing_push_counts_as_zeros_through_the_codec(create: Stores) -> None:
    for kind in TYPES:
        kv = compressed(create, kind, missing="zeros")
        check_missing_pushes(kv, Sums(kind, 0.5, CODED, kv.num_workers))


@case()
def a_drained_rank_sends_nothing(create: Stores) -> None:
    for kind in TYPES:
        for op in ("sum", "avg"):
            kv = create()
            kv.set_gradient_compression({"type": kind, "threshold": 0.5})
            kv.init(["w", "c"], [np.zeros(LENGTHS[key], np.float32) for key in "wc"], op=op)
            check_drained_ranks(kv, Sums(kind, 0.5, ["w", "c"], kv.num_workers), ["w", "c"], op)


@case()
def arrays_of_a_key_are_senders_in_one_process(create: Stores) -> None:
    kv = compressed(create, "2bit")
    several = create.name in ALONE
    sums = Sums("2bit", 0.5, ["w"], 3 if several else kv.num_workers)
    for step, number in enumerate([3, 1, 2, 3]):
        arrays = {
            rank: [gradient(3 * rank + index, step, "w") for index in range(number)]
            for rank in range(kv.num_workers)
        }
        kv.push("w", arrays[kv.rank] if number > 1 else arrays[kv.rank][0])
        if several:
            check(kv, "w", sums.push("w", dict(enumerate(arrays[0]))))
        else:
            added = {rank: np.sum(found, axis=0) for rank, found in arrays.items()}
            check(kv, "w", sums.push("w", added))
    residuals = context_of(kv).engine.reductions.residuals.all_of("w")
    assert len(residuals) == (3 if several else 1)


@case()
def another_threshold_keeps_residuals_and_another_type_does_not(create: Stores) -> None:
    kv = compressed(create, "2bit")
    sums = Sums("2bit", 0.5, CODED, kv.num_workers)

    def push(step: int) -> None:
        kv.push(["w", "b"], [gradient(kv.rank, step, "w"), gradient(kv.rank, step, "b")])
        check(kv, "w", sums.step("w", step))

    push(0)
    kv.set_gradient_compression({"type": "2bit", "threshold": 0.25}, keys=["w", "b"])
    for model in sums.models.values():
        model.threshold = np.float32(0.25)
    push(1)
    assert kv.gradient_compression("w")["threshold"] == 0.25
    assert kv.gradient_compression("long")["threshold"] == 0.5
    kv.set_gradient_compression({"type": "1bit"})
    sums = Sums("1bit", 0.5, CODED, kv.num_workers)
    push(2)
    kv.reset("w", np.ones(LENGTHS["w"], np.float32))
    sums = Sums("1bit", 0.5, CODED, kv.num_workers)
    push(3)
    kv.set_gradient_compression(None)
    assert kv.gradient_compression("w") is None
    kv.push("w", gradient(kv.rank, 4, "w"))
    check(kv, "w", sum(gradient(rank, 4, "w") for rank in range(kv.num_workers)))
    assert context_of(kv).engine.reductions.residuals.nbytes == 0


@case()
def keys_that_are_not_compressed(create: Stores) -> None:
    kv = create()
    kv.set_gradient_compression({"type": "2bit"})
    kv.init("n", np.zeros(3, np.int64))
    kv.init("most", np.zeros(3, np.float32), op="max")
    kv.init("w", np.full(3, 0.3, np.float32))
    same(kv.pull("w"), np.float32(0.3))
    kv.push(["n", "most"], [np.full(3, kv.rank + 1), full(kv.rank, (3,))])
    same(kv.pull("n"), kv.num_workers * (kv.num_workers + 1) // 2)
    same(kv.pull("most"), kv.num_workers - 1)
    same(kv.allreduce(full(0.25)), 0.25 * kv.num_workers)
    assert kv.gradient_compression("n") is None
    assert kv.gradient_compression("w") == {
        "type": "2bit",
        "threshold": 0.5,
        "scope": "rank",
        "saturated": 0.0,
    }
    plan = kv.explain_plan()
    assert "encoded by 2bit: 'w'" in plan
    assert "not encoded by 2bit, which takes float32, and sum, avg: 'n', 'most'" in plan


def misuse(kv: Any) -> dict[str, tuple[type[Exception], Callable[[], Any], str]]:
    """Return calls that are refused, by their reason."""
    set_codec = kv.set_gradient_compression
    return {
        "a str": (UsageError, lambda: set_codec("2bit"), "compression_params='2bit' is not a dict"),
        "no type": (UsageError, lambda: set_codec({}), "compression_params has no 'type'"),
        "type": (UsageError, lambda: set_codec({"type": "3bit"}), "'3bit'"),
        "name": (
            UnknownArgument,
            lambda: set_codec({"type": "2bit", "treshold": 1}),
            "did you mean 'threshold'",
        ),
        "threshold": (UsageError, lambda: set_codec({"type": "2bit", "threshold": 0}), "above 0"),
        "host": (UsageError, lambda: set_codec({"type": "2bit", "scope": "host"}), "'host'"),
        "dtype": (
            DTypeMismatch,
            lambda: set_codec({"type": "2bit"}, keys=["w", "n"]),
            "key 'n' is int64, and 2bit compresses float32",
        ),
        "op": (
            NotSupported,
            lambda: set_codec({"type": "2bit"}, keys="most"),
            "key 'most' has the op max, and 2bit compresses sum, avg",
        ),
        "keys": (UsageError, lambda: set_codec({"type": "2bit"}, keys=1.5), "keys are int or str"),
        "init": (
            DTypeMismatch,
            lambda: kv.init("late", np.zeros(2, np.int32)),
            "key 'late' is int32, and 2bit compresses float32",
        ),
    }


@case()
def wrong_calls_are_refused(create: Stores) -> None:
    kv = create()
    kv.init(["w", "n"], [np.zeros(4, np.float32), np.zeros(4, np.int64)])
    kv.init("most", np.zeros(4, np.float32), op="max")
    kv.set_gradient_compression({"type": "2bit"}, keys="late")
    for error, call, words in misuse(kv).values():
        with refused(kv, error, words):
            call()
    assert kv.gradient_compression("w") is None
    for block in kv.group, lambda: kv.overlap("w", missing="zeros"), kv.uneven:
        with block(), refused(kv, UsageError, "set_gradient_compression was called inside"):
            kv.set_gradient_compression({"type": "2bit"})
    kv.set_gradient_compression({"type": "2bit"})
    kv.push("w", full(0.75, (4,)))
    same(kv.pull("w"), 0.5 * kv.num_workers)


@case(sizes=SEVERAL)
def ranks_that_differ_are_refused(create: Stores) -> None:
    kv = create()
    kv.init("w", np.zeros(4, np.float32))
    with pytest.raises(SpecMismatch) as caught:
        kv.set_gradient_compression({"type": "2bit", "threshold": 0.5 + kv.rank})
    check_words(
        caught.value,
        "the ranks disagree at set_gradient_compression",
        "rank 0 has compression_params={'type': '2bit', 'threshold': 0.5, 'scope': 'rank'}",
        "rank 1 has compression_params={'type': '2bit', 'threshold': 1.5, 'scope': 'rank'}",
    )


@case()
def thirty_pushes_of_keys_of_every_length(create: Stores) -> None:
    lengths = [*range(1, 71), *(2**power + more for power in range(7, 12) for more in (-1, 0, 1))]
    ends = np.cumsum(lengths)
    keys = [f"k{length}" for length in lengths]
    for kind, threshold in ("2bit", 0.3), ("2bit", 1.7), ("1bit", -0.1):
        kv = create(bucket_bytes=8192)
        kv.set_gradient_compression({"type": kind, "threshold": threshold})
        kv.init(keys, [np.zeros(length, np.float32) for length in lengths])
        # Each element is encoded by itself, so one model has those of all keys.
        models = [MODELS[kind](threshold, int(ends[-1])) for _ in range(kv.num_workers)]
        for step in range(30):
            count: np.ndarray = np.zeros(ends[-1], np.int64)
            for rank, model in enumerate(models):
                rng = np.random.default_rng([rank, step])
                numbers = rng.standard_normal(ends[-1], np.float32)
                count += model.push(numbers)[1]
                if rank == kv.rank:
                    kv.push(keys, np.split(numbers, ends[:-1]))
            found = np.concatenate([on_host(value) for value in kv.pull(keys)])
            expected = count.astype(np.float32) * np.float32(models[0].step)
            np.testing.assert_array_equal(found, expected, f"rank {kv.rank}, step {step}")
