"""An optimizer at work on whole buckets."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncclkv.errors import DTypeMismatch, NotSupported, UsageError
from ncclkv.kernels.host import HostKernels
from ncclkv.optimizer import SGD, Optimizer, State
from ncclkv.optimizer.fused import FusedUpdater
from ncclkv.table.bucket import Bucket, place
from ncclkv.table.registry import Key, KeySpec

pytestmark = pytest.mark.usefixtures("in_numpy_and_c")


class CountingKernels(HostKernels):
    """Host kernels that record the length of each update, or of its segments."""

    def __init__(self) -> None:
        self.lengths: list[list[int]] = []

    def update(self, *arguments: Any) -> None:  # type: ignore[override]
        self.lengths.append(np.diff(arguments[5].bounds).tolist())
        HostKernels.update(*arguments)


def _bucket(dtype: Any = "float32", index: int = 0) -> Bucket:
    """Keys a, b, c of 10, 100 and 3 elements in one bucket."""
    sizes = {"a": 10, "b": 100, "c": 3}
    specs = [
        KeySpec(key, number, (size,), np.dtype(dtype))
        for number, (key, size) in enumerate(sizes.items())
    ]
    (bucket,) = place(specs, 1 << 20, first=index)
    return bucket


def _at_work(optimizer: SGD, *buckets: Bucket, kernels: HostKernels | None = None) -> FusedUpdater:
    """An updater that has what it needs for some buckets."""
    updater = FusedUpdater(optimizer, kernels or HostKernels())
    for bucket in buckets:
        updater.allocate(bucket, partial(_zeros, bucket.count))
    return updater


def _zeros(count: int, name: str, dtype: np.dtype[Any]) -> np.ndarray:
    return np.zeros(count, dtype)


def _apply(
    updater: FusedUpdater,
    step: Optimizer,
    bucket: Bucket,
    arrays: tuple[np.ndarray, np.ndarray],
    *ranges: tuple[int, int],
) -> None:
    """One update of all keys of a bucket, range by range."""
    update = updater.begin(step, bucket, bucket.numbers, *arrays)
    for lo, hi in ranges or [(0, bucket.count)]:
        update(lo, hi)


def _arrays(bucket: Bucket) -> tuple[np.ndarray, np.ndarray]:
    """Weights of 0 and gradients of 1, padding included: what is skipped shows."""
    return np.zeros(bucket.count, bucket.dtype), np.ones(bucket.count, bucket.dtype)


def test_one_kernel_call_updates_a_range_of_many_keys() -> None:
    bucket, kernels = _bucket(), CountingKernels()
    weights, gradients = _arrays(bucket)
    updater = _at_work(SGD(learning_rate=0.5), bucket, kernels=kernels)
    _apply(updater, updater.step(), bucket, (weights, gradients))
    _apply(updater, updater.step(), bucket, (weights, gradients), (3, 90))
    assert kernels.lengths == [[bucket.count], [87]]
    assert (weights[3:90] == -1).all()
    assert (weights[:3] == -0.5).all()
    assert (weights[90:] == -0.5).all()


def test_factors_of_other_keys_do_not_cut_the_range() -> None:
    bucket, kernels = _bucket(), CountingKernels()
    optimizer = SGD()
    optimizer.set_lr_mult({"elsewhere": 2.0})
    updater = _at_work(optimizer, bucket, kernels=kernels)
    _apply(updater, updater.step(), bucket, _arrays(bucket))
    assert kernels.lengths == [[bucket.count]]


def test_factors_cut_the_range_at_keys() -> None:
    bucket, kernels = _bucket(), CountingKernels()
    a, b, c = bucket.entries
    optimizer = SGD(learning_rate=1.0, wd=1.0)
    optimizer.set_lr_mult({"a": 0.5})
    optimizer.set_wd_mult({"c": 0.0})
    weights, gradients = _arrays(bucket)
    weights[:] = 4
    updater = _at_work(optimizer, bucket, kernels=kernels)
    _apply(updater, updater.step(), bucket, (weights, gradients), (a.lo + 2, c.lo + 1))
    assert kernels.lengths == [[b.lo - a.lo - 2, c.lo - b.lo, 1]], "one call, padding included"
    assert weights[a.lo : a.hi].tolist() == [4, 4] + [4 - 0.5 * 5] * 8
    assert weights[b.lo : b.hi].tolist() == [4 - 5] * 100
    assert weights[c.lo : c.hi].tolist() == [4 - 1, 4, 4]


def test_ranges_of_a_bucket_share_its_state() -> None:
    bucket = _bucket()
    whole, parts = (_at_work(SGD(learning_rate=0.5, momentum=0.5), bucket) for _ in range(2))
    (expected, gradients), (weights, _) = _arrays(bucket), _arrays(bucket)
    for step in range(3):
        _apply(whole, whole.step(), bucket, (expected, gradients))
        cut = 50 + step
        ranges = (cut, bucket.count), (0, cut)
        _apply(parts, parts.step(), bucket, (weights, gradients), *ranges)
    assert np.array_equal(weights, expected)
    assert weights[0] == -0.5 - 0.75 - 0.875


def test_buckets_have_states_of_their_own() -> None:
    buckets = [_bucket(index=0), _bucket(index=1)]
    updater = _at_work(SGD(learning_rate=0.5, momentum=0.5), *buckets)
    for bucket in buckets:
        weights, gradients = _arrays(bucket)
        _apply(updater, updater.step(), bucket, (weights, gradients))
        assert (weights == -0.5).all()


def test_a_step_keeps_the_numbers_of_its_time() -> None:
    bucket = _bucket()
    optimizer = SGD(learning_rate=0.5)
    optimizer.set_lr_mult({"a": 2.0})
    updater = _at_work(optimizer, bucket)
    before = updater.step()
    optimizer.learning_rate = 0.25
    optimizer.lr_mult["a"] = 4.0
    optimizer.wd = 1.0
    after = updater.step()
    for step, of_a, of_others in ((before, -1, -0.5), (after, -1, -0.25)):
        weights, gradients = _arrays(bucket)
        _apply(updater, step, bucket, (weights, gradients))
        assert (weights[:10] == of_a).all()
        assert (weights[bucket.entries[1].lo : bucket.entries[1].hi] == of_others).all()


def test_steps_are_one_object_until_a_number_changes() -> None:
    optimizer = SGD()
    updater = FusedUpdater(optimizer, HostKernels())
    first = updater.step()
    assert updater.step() is first
    optimizer.set_wd_mult({"a": 0.0})
    assert updater.step() is not first
    assert updater.step() is updater.step()


def test_reset_forgets_the_state_of_a_range_alone() -> None:
    bucket = _bucket()
    b = bucket.entries[1]
    weights, gradients = _arrays(bucket)
    updater = _at_work(SGD(learning_rate=0.5, momentum=0.5), bucket)
    updater.reset(bucket, "b", weights)
    _apply(updater, updater.step(), bucket, (weights, gradients))
    updater.reset(bucket, "b", weights)
    _apply(updater, updater.step(), bucket, (weights, gradients))
    inside = np.zeros(bucket.count, bool)
    inside[b.lo : b.hi] = True
    assert (weights[inside] == -1).all()
    assert (weights[~inside] == -1.25).all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_16_bit_weights_have_float32_states(dtype: Any) -> None:
    if dtype == "bfloat16":
        dtype = pytest.importorskip("ml_dtypes", reason="bfloat16 needs it").bfloat16
    bucket = _bucket(dtype)
    weights, gradients = _arrays(bucket)
    updater = _at_work(SGD(learning_rate=0.1, momentum=0.9), bucket)
    wide, momenta = np.zeros((2, bucket.count), np.float32)
    for _ in range(3):
        _apply(updater, updater.step(), bucket, (weights, gradients))
        momenta = np.float32(0.9) * momenta - np.float32(0.1)
        wide = (wide + momenta).astype(dtype).astype(np.float32)
        assert np.array_equal(weights.astype(np.float32), wide)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_floating_keys_pass_the_check(dtype: str) -> None:
    FusedUpdater(SGD(), HostKernels()).check(KeySpec("w", 0, (2,), np.dtype(dtype)))


def test_bfloat16_keys_pass_the_check() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="bfloat16 needs ml_dtypes")
    FusedUpdater(SGD(), HostKernels()).check(KeySpec(3, 0, (2,), np.dtype(ml_dtypes.bfloat16)))


@pytest.mark.parametrize("dtype", ["bool", "int16", "uint16", "int64", "complex64"])
def test_other_keys_are_refused_with_key_and_dtype(dtype: str) -> None:
    with pytest.raises(DTypeMismatch) as caught:
        FusedUpdater(SGD(), HostKernels()).check(KeySpec("w", 0, (2,), np.dtype(dtype)))
    assert str(caught.value).startswith(f"key 'w' is {dtype}, and SGD updates float16, bfloat16")


def test_a_wrong_factor_is_refused_until_it_is_mended() -> None:
    optimizer = SGD()
    updater = FusedUpdater(optimizer, HostKernels())
    before = updater.step()
    optimizer.lr_mult["a"] = float("nan")
    for _ in range(2):
        with pytest.raises(UsageError, match="lr_mult of key 'a' is nan"):
            updater.step()
    optimizer.lr_mult["a"] = 2
    assert updater.step().lr_mult == {"a": 2.0}
    assert before.lr_mult == {}


def test_items_put_into_factors_later_leave_a_step_as_it_was() -> None:
    optimizer = SGD()
    updater = FusedUpdater(optimizer, HostKernels())
    optimizer.lr_mult["a"] = 2.0
    step = updater.step()
    optimizer.lr_mult["a"] = 3.0
    assert step.lr_mult == {"a": 2.0}


class Counting(SGD):
    """Divides its learning rate by the number of the update."""

    counted = True

    def scalars(self, key: Key, count: int) -> tuple[float, ...]:
        rate, *others = super().scalars(key, count)
        return rate / count, *others


@given(
    st.lists(
        st.tuples(
            st.sets(st.sampled_from("abc"), min_size=1),
            st.sampled_from([0.5, 0.25, 1.0]),
            st.dictionaries(st.sampled_from("abcx"), st.sampled_from([0.0, 1.0, 2.0]), max_size=3),
        ),
        max_size=8,
    ),
    st.sampled_from([SGD, Counting]),
    st.sampled_from(["float32", "float64"]),
    st.integers(1, 300),
)
def test_any_steps_against_a_model(
    steps: list[tuple[set[str], float, dict[str, float]]], make: Any, dtype: str, block: int
) -> None:
    """Numbers and factors change from step to step, and some keys are pushed in each."""
    bucket = _bucket(dtype)
    optimizer = make(learning_rate=1.0, momentum=0.5)
    updater = _at_work(optimizer, bucket)
    weights, gradients = _arrays(bucket)
    expected = dict.fromkeys("abc", (0.0, 0.0, 0))
    for keys, rate, factors in steps:
        optimizer.learning_rate, optimizer.lr_mult = rate, factors
        update = updater.begin(updater.step(), bucket, keys, weights, gradients)
        for lo, hi in bucket.runs(keys):
            for at in range(lo, hi, block):
                update(at, min(at + block, hi))
        for key in keys:
            weight, moment, count = expected[key]
            change = rate * factors.get(key, 1.0) / (count + 1 if make is Counting else 1)
            moment = moment * 0.5 - change
            expected[key] = weight + moment, moment, count + 1
    for entry in bucket.entries:
        weight, _, count = expected[str(entry.key)]
        np.testing.assert_allclose(weights[entry.lo : entry.hi], weight, rtol=1e-5)
        assert updater.counts.count(bucket, entry.key) == count


def test_a_step_with_equal_numbers_makes_no_row_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    bucket, kernels = _bucket(), HostKernels()
    optimizer = SGD(learning_rate=0.5)
    optimizer.wd_mult = {"a": 0.0}
    updater = _at_work(optimizer, bucket, kernels=kernels)
    _apply(updater, updater.step(), bucket, _arrays(bucket))
    for name in ("config", "scalars", "snapshot"):
        monkeypatch.setattr(SGD, name, None)
    _apply(updater, updater.step(), bucket, _arrays(bucket))
    optimizer.wd_mult["b"] = 0.0
    with pytest.raises(TypeError):
        updater.step()


def test_an_equal_number_that_is_assigned_keeps_the_step() -> None:
    """Else a rank that assigns one would launch other collectives than the rest."""
    optimizer = SGD(learning_rate=0.5)
    updater = FusedUpdater(optimizer, HostKernels())
    step = updater.step()
    optimizer.learning_rate = 0.5
    optimizer.lr_mult = {}
    assert updater.step() is step


def test_a_flag_skips_an_update() -> None:
    bucket = _bucket()
    updater = _at_work(SGD(learning_rate=0.5), bucket)
    weights, gradients = _arrays(bucket)
    for flag, expected in ((1, 0.0), (0, -0.5)):
        skip = np.array([flag], np.int32)
        step = updater.step()
        updater.begin(step, bucket, bucket.numbers, weights, gradients, skip)(0, bucket.count)
        assert (weights == expected).all()


class Masters(SGD):
    """Keeps a float32 copy of the weights, and what they were at first."""

    @property
    def states(self) -> tuple[State, ...]:
        return State("master", "float32", "weights"), State("sum", "float64")


def test_states_have_names_dtypes_and_first_values() -> None:
    bucket = _bucket("float16")
    updater = _at_work(Masters(), bucket)
    weights = np.arange(bucket.count, dtype=np.float16)
    updater.start(bucket, weights)
    states = updater.states(bucket, 1, 5)
    assert {name: (s.dtype, s.tolist()) for name, s in states.items()} == {
        "master": (np.float32, [1, 2, 3, 4]),
        "sum": (np.float64, [0] * 4),
    }
    for state in states.values():
        state[:] = 9
    b = bucket.entries[1]
    weights[:] = 7
    updater.reset(bucket, "b", weights)
    states = updater.states(bucket, 0, bucket.count)
    assert states["master"][b.lo - 1 : b.lo + 2].tolist() == [b.lo - 1, 7, 7]
    assert states["master"][1:5].tolist() == states["sum"][1:5].tolist() == [9] * 4


def test_norms_are_refused() -> None:
    class Lars(SGD):
        norms = True

    with pytest.raises(NotSupported, match="Lars needs the norms of weights and gradients"):
        FusedUpdater(Lars(), HostKernels())
