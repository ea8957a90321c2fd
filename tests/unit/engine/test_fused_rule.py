"""The rule of an optimizer: updates of whole buckets, range by range."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ncclkv.comm.destinations import EVERYONE, Owners, To
from ncclkv.comm.solo import SoloCommunicator
from ncclkv.comm.types import Apply
from ncclkv.engine.bucket_state import BucketState, Slot
from ncclkv.engine.fused_rule import FusedRule
from ncclkv.engine.reductions import Reductions
from ncclkv.errors import DTypeMismatch, UsageError
from ncclkv.kernels.host import HostKernels
from ncclkv.optimizer import SGD, Optimizer, State
from ncclkv.table.bucket import make_buckets
from ncclkv.table.registry import Key, KeySpec

pytestmark = pytest.mark.usefixtures("in_numpy_and_c")


class CountingKernels(HostKernels):
    """Host kernels that record the length of each update, or of its segments."""

    def __init__(self) -> None:
        self.lengths: list[list[int]] = []

    def update(self, *arguments: Any) -> None:  # type: ignore[override]
        self.lengths.append(np.diff(arguments[5].bounds).tolist())
        HostKernels.update(*arguments)


def _bucket(
    dtype: Any = "float32", index: int = 0, to: To = EVERYONE, rank: int = 0
) -> BucketState:
    """Return one bucket of keys a, b, c, of 10, 100 and 3 elements, as a rank has it."""
    sizes = {"a": 10, "b": 100, "c": 3}
    specs = [
        KeySpec(key, number, (size,), np.dtype(dtype))
        for number, (key, size) in enumerate(sizes.items())
    ]
    (bucket,) = make_buckets(specs, 1 << 20, first=index)
    comm = SoloCommunicator(60.0)
    comm.rank = rank
    reductions = Reductions(comm)
    return BucketState(bucket, comm, reductions, to=to)


def _slot(state: BucketState, key: Key) -> Slot:
    """Return the slot of a key."""
    return Slot(state, state.bucket.entries[state.bucket.entry_indices[key]])


def _rule(
    optimizer: Optimizer, *states: BucketState, kernels: HostKernels | None = None
) -> FusedRule:
    """Return a rule with the states of some buckets."""
    rule = FusedRule(optimizer, kernels or HostKernels())
    for state in states:
        rule.allocate(state, state.to)
    return rule


def _begin(
    rule: FusedRule,
    step: Optimizer,
    state: BucketState,
    keys: Iterable[Key] | None = None,
    skip: np.ndarray | None = None,
) -> Apply:
    """Begin an update of some keys of a bucket, by default of all."""
    pushed = set(state.bucket.entry_indices if keys is None else keys)
    state.push(pushed, step)
    rule.count_update(state.bucket, pushed)
    ((_, update),) = rule.target(state, [state.span((0, state.bucket.count))], skip)
    assert update is not None
    return update


def _apply(rule: FusedRule, step: Optimizer, state: BucketState, *ranges: tuple[int, int]) -> None:
    """Update all keys of a bucket once, range by range."""
    update = _begin(rule, step, state)
    for lo, hi in ranges or [(0, state.bucket.count)]:
        update(lo, hi)


def _fill(state: BucketState, weights: float = 0) -> None:
    """Set the weights, and gradients of 1, padding included: skipped elements show."""
    state.weights[:] = weights
    state.gradients[:] = 1


def test_one_kernel_call_updates_a_range_of_many_keys() -> None:
    state, kernels = _bucket(), CountingKernels()
    _fill(state)
    rule = _rule(SGD(learning_rate=0.5), state, kernels=kernels)
    _apply(rule, rule.step(), state)
    _apply(rule, rule.step(), state, (3, 90))
    assert kernels.lengths == [[state.bucket.count], [87]]
    assert (state.weights[3:90] == -1).all()
    assert (state.weights[:3] == -0.5).all()
    assert (state.weights[90:] == -0.5).all()


def test_factors_of_other_keys_do_not_cut_the_range() -> None:
    state, kernels = _bucket(), CountingKernels()
    optimizer = SGD()
    optimizer.set_lr_mult({"elsewhere": 2.0})
    rule = _rule(optimizer, state, kernels=kernels)
    _apply(rule, rule.step(), state)
    assert kernels.lengths == [[state.bucket.count]]


def test_factors_cut_the_range_at_keys() -> None:
    state, kernels = _bucket(), CountingKernels()
    a, b, c = state.bucket.entries
    optimizer = SGD(learning_rate=1.0, wd=1.0)
    optimizer.set_lr_mult({"a": 0.5})
    optimizer.set_wd_mult({"c": 0.0})
    _fill(state, weights=4)
    rule = _rule(optimizer, state, kernels=kernels)
    _apply(rule, rule.step(), state, (a.lo + 2, c.lo + 1))
    assert kernels.lengths == [[b.lo - a.lo - 2, c.lo - b.lo, 1]], "one call, padding included"
    weights = state.weights
    assert weights[a.lo : a.hi].tolist() == [4, 4] + [4 - 0.5 * 5] * 8
    assert weights[b.lo : b.hi].tolist() == [4 - 5] * 100
    assert weights[c.lo : c.hi].tolist() == [4 - 1, 4, 4]


def test_a_span_counts_its_ranges_from_its_own_first_element() -> None:
    state = _bucket()
    _fill(state)
    rule = _rule(SGD(learning_rate=1.0), state)
    state.push({"b"}, rule.step())
    b = state.bucket.entries[1]
    ((receive, update),) = rule.target(state, [state.span((b.lo, b.hi))], None)
    assert update is not None
    assert receive.size == 100
    update(10, 30)
    changed = np.flatnonzero(state.weights)
    assert changed.tolist() == list(range(b.lo + 10, b.lo + 30))


def test_ranges_of_a_bucket_share_its_state() -> None:
    whole, parts = _bucket(), _bucket()
    rules = [_rule(SGD(learning_rate=0.5, momentum=0.5), state) for state in (whole, parts)]
    for state in (whole, parts):
        _fill(state)
    for step in range(3):
        _apply(rules[0], rules[0].step(), whole)
        cut = 50 + step
        _apply(rules[1], rules[1].step(), parts, (cut, parts.bucket.count), (0, cut))
    assert np.array_equal(parts.weights, whole.weights)
    assert parts.weights[0] == -0.5 - 0.75 - 0.875


def test_buckets_have_states_of_their_own() -> None:
    states = [_bucket(index=0), _bucket(index=1)]
    rule = _rule(SGD(learning_rate=0.5, momentum=0.5), *states)
    for state in states:
        _fill(state)
        _apply(rule, rule.step(), state)
        assert (state.weights == -0.5).all()


def test_a_step_keeps_its_numbers() -> None:
    state = _bucket()
    optimizer = SGD(learning_rate=0.5)
    optimizer.set_lr_mult({"a": 2.0})
    rule = _rule(optimizer, state)
    before = rule.step()
    optimizer.learning_rate = 0.25
    optimizer.lr_mult["a"] = 4.0
    optimizer.wd = 1.0
    after = rule.step()
    b = state.bucket.entries[1]
    for step, of_a, of_others in ((before, -1, -0.5), (after, -1, -0.25)):
        _fill(state)
        _apply(rule, step, state)
        assert (state.weights[:10] == of_a).all()
        assert (state.weights[b.lo : b.hi] == of_others).all()


def test_steps_are_one_object_until_a_number_changes() -> None:
    optimizer = SGD()
    rule = _rule(optimizer)
    first = rule.step()
    assert rule.step() is first
    optimizer.set_wd_mult({"a": 0.0})
    assert rule.step() is not first
    assert rule.step() is rule.step()


def test_reset_zeroes_the_state_of_one_key_alone() -> None:
    state = _bucket()
    b = state.bucket.entries[1]
    _fill(state)
    rule = _rule(SGD(learning_rate=0.5, momentum=0.5), state)
    for _ in range(2):
        rule.reset(_slot(state, "b"))
        _apply(rule, rule.step(), state)
    inside = np.zeros(state.bucket.count, bool)
    inside[b.lo : b.hi] = True
    assert (state.weights[inside] == -1).all()
    assert (state.weights[~inside] == -1.25).all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_16_bit_weights_have_float32_states(dtype: Any) -> None:
    if dtype == "bfloat16":
        dtype = pytest.importorskip("ml_dtypes", reason="bfloat16 needs it").bfloat16
    state = _bucket(dtype)
    _fill(state)
    rule = _rule(SGD(learning_rate=0.1, momentum=0.9), state)
    wide, momenta = np.zeros((2, state.bucket.count), np.float32)
    for _ in range(3):
        _apply(rule, rule.step(), state)
        momenta = np.float32(0.9) * momenta - np.float32(0.1)
        wide = (wide + momenta).astype(dtype).astype(np.float32)
        assert np.array_equal(state.weights.astype(np.float32), wide)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "complex64", "complex128"])
def test_floating_keys_pass_the_check(dtype: str) -> None:
    _rule(SGD()).check(KeySpec("w", 0, (2,), np.dtype(dtype)))


def test_bfloat16_keys_pass_the_check() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="bfloat16 needs ml_dtypes")
    _rule(SGD()).check(KeySpec(3, 0, (2,), np.dtype(ml_dtypes.bfloat16)))


@pytest.mark.parametrize("dtype", ["bool", "int16", "uint16", "int64"])
def test_other_keys_are_refused_with_key_and_dtype(dtype: str) -> None:
    with pytest.raises(DTypeMismatch) as caught:
        _rule(SGD()).check(KeySpec("w", 0, (2,), np.dtype(dtype)))
    assert str(caught.value).startswith(f"key 'w' is {dtype}, and SGD updates float16, bfloat16")


def test_complex_keys_are_for_optimizers_that_update_pairs() -> None:
    class Real(SGD):
        complex_weights = False

    with pytest.raises(DTypeMismatch) as caught:
        _rule(Real()).check(KeySpec("w", 0, (2,), np.dtype("complex64")))
    assert str(caught.value) == (
        "key 'w' is complex64, and Real updates float16, bfloat16, float32 and float64; keep such "
        "a key in a store without an optimizer, or give set_updater a function"
    )


def test_a_complex_number_is_updated_as_two_real_numbers() -> None:
    state, kernels = _bucket("complex64"), CountingKernels()
    a, b, _ = state.bucket.entries
    optimizer = SGD(learning_rate=0.5, momentum=0.5)
    optimizer.set_lr_mult({"a": 2.0})
    rule = _rule(optimizer, state, kernels=kernels)
    state.gradients[:] = 1 - 2j
    _apply(rule, rule.step(), state, (a.lo + 1, b.lo + 3))
    assert kernels.lengths == [[2 * (b.lo - a.lo - 1), 6]]
    expected = np.zeros(state.bucket.count, np.complex64)
    expected[a.lo + 1 : b.lo] = -1 + 2j
    expected[b.lo : b.lo + 3] = -0.5 + 1j
    assert np.array_equal(state.weights, expected)
    assert rule.states(_slot(state, "b"))["momentum"][:4].tolist() == [-0.5 + 1j] * 3 + [0]


def test_a_wrong_factor_is_refused_until_it_is_corrected() -> None:
    optimizer = SGD()
    rule = _rule(optimizer)
    before = rule.step()
    optimizer.lr_mult["a"] = float("nan")
    for _ in range(2):
        with pytest.raises(UsageError, match="lr_mult of key 'a' is nan"):
            rule.step()
    optimizer.lr_mult["a"] = 2
    assert rule.step().lr_mult == {"a": 2.0}
    assert before.lr_mult == {}


def test_items_added_to_factors_later_do_not_change_a_step() -> None:
    optimizer = SGD()
    rule = _rule(optimizer)
    optimizer.lr_mult["a"] = 2.0
    step = rule.step()
    optimizer.lr_mult["a"] = 3.0
    assert step.lr_mult == {"a": 2.0}


class Counting(SGD):
    """An optimizer that divides its learning rate by the number of the update."""

    counted = True

    def scalars(self, key: Key, count: int) -> tuple[float, ...]:
        rate, *others = super().scalars(key, count)
        return rate / count, *others


def test_a_captured_step_that_counts_two_updates_of_a_key_is_refused() -> None:
    for make, refused in (SGD, False), (Counting, True):
        state = _bucket()
        rule = _rule(make(), state)
        rule.recording = rule.captured([state], rule._kernels)
        for keys in {"a", "b"}, {"c"}:
            _begin(rule, rule.step(), state, keys)
        if not refused:
            _begin(rule, rule.step(), state, {"b", "c"})
            continue
        with pytest.raises(UsageError) as caught:
            _begin(rule, rule.step(), state, {"b", "c"})
        assert str(caught.value) == (
            "capture: key 'b' is updated twice in the step, and Counting counts updates: a replay "
            "would give both the same count; capture a step with one update of each key"
        )


@settings(deadline=None)
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
def test_random_steps_match_a_model(
    steps: list[tuple[set[str], float, dict[str, float]]], make: Any, dtype: str, block: int
) -> None:
    """Compare random steps with a model; numbers, factors and pushed keys change."""
    state = _bucket(dtype)
    optimizer = make(learning_rate=1.0, momentum=0.5)
    rule = _rule(optimizer, state)
    _fill(state)
    expected = dict.fromkeys("abc", (0.0, 0.0, 0))
    for keys, rate, factors in steps:
        optimizer.learning_rate, optimizer.lr_mult = rate, factors
        update = _begin(rule, rule.step(), state, keys)
        for lo, hi in state.bucket.ranges(keys):
            for at in range(lo, hi, block):
                update(at, min(at + block, hi))
        for key in keys:
            weight, moment, count = expected[key]
            change = rate * factors.get(key, 1.0) / (count + 1 if make is Counting else 1)
            moment = moment * 0.5 - change
            expected[key] = weight + moment, moment, count + 1
    for entry in state.bucket.entries:
        weight, _, count = expected[str(entry.key)]
        np.testing.assert_allclose(state.weights[entry.lo : entry.hi], weight, rtol=1e-5)
        assert rule.count(_slot(state, entry.key)) == count


def test_a_step_with_equal_numbers_rewrites_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    state = _bucket()
    optimizer = SGD(learning_rate=0.5)
    optimizer.wd_mult = {"a": 0.0}
    rule = _rule(optimizer, state)
    _apply(rule, rule.step(), state)
    for name in ("config", "scalars", "snapshot"):
        monkeypatch.setattr(SGD, name, None)
    _apply(rule, rule.step(), state)
    optimizer.wd_mult["b"] = 0.0
    with pytest.raises(TypeError):
        rule.step()


def test_an_equal_number_that_is_assigned_keeps_the_step() -> None:
    """Otherwise a rank that assigns an equal number would launch other collectives."""
    optimizer = SGD(learning_rate=0.5)
    rule = _rule(optimizer)
    step = rule.step()
    optimizer.learning_rate = 0.5
    optimizer.lr_mult = {}
    assert rule.step() is step


def test_a_flag_skips_an_update() -> None:
    state = _bucket()
    rule = _rule(SGD(learning_rate=0.5), state)
    _fill(state)
    for flag, expected in ((1, 0.0), (0, -0.5)):
        update = _begin(rule, rule.step(), state, skip=np.array([flag], np.int32))
        update(0, state.bucket.count)
        assert (state.weights == expected).all()


class Masters(SGD):
    """An optimizer with two states: weights in float32, and a float64 sum."""

    @property
    def states(self) -> tuple[State, ...]:
        return State("master", "float32", "weights"), State("sum", "float64")


def test_states_have_names_dtypes_and_first_values() -> None:
    state = _bucket("float16")
    state.weights[:] = np.arange(state.bucket.count)
    rule = _rule(Masters(), state)
    of_a = rule.states(_slot(state, "a"))
    assert {name: (s.dtype, s.tolist()) for name, s in of_a.items()} == {
        "master": (np.float32, list(range(10))),
        "sum": (np.float64, [0] * 10),
    }
    for each in of_a.values():
        each[:] = 9
    state.weights[:] = 7
    rule.reset(_slot(state, "b"))
    of_b, of_c = (rule.states(_slot(state, key)) for key in "bc")
    assert of_b["master"].tolist() == [7] * 100
    assert of_b["sum"].tolist() == [0] * 100
    assert of_a["master"].tolist() == of_a["sum"].tolist() == [9] * 10
    c = state.bucket.entries[2]
    assert of_c["master"].tolist() == [c.lo, c.lo + 1, c.lo + 2], "not reset"


class Averaging(Counting):
    """An optimizer with a second state, which begins as a copy of the weights."""

    @property
    def states(self) -> tuple[State, ...]:
        return (State("momentum", init="weights"),)


@settings(deadline=None)
@given(
    st.lists(st.integers(0, 256), min_size=2, max_size=2),
    st.lists(st.sets(st.sampled_from("abc"), min_size=1), min_size=1, max_size=4),
    st.sampled_from([SGD, Counting, Averaging]),
    st.sampled_from(["float16", "float32"]),
    st.integers(1, 100),
)
def test_parts_of_three_ranks_are_the_whole(
    cuts: list[int], steps: list[set[str]], make: Any, dtype: str, block: int
) -> None:
    """Update a bucket whole, and in the parts of its owners."""
    count = _bucket(dtype).bucket.count
    to = Owners([0, *sorted(min(cut, count) for cut in cuts), count])
    whole = _bucket(dtype)
    parts = [_bucket(dtype, to=to, rank=rank) for rank in range(3)]
    rng = np.random.default_rng(len(steps))
    first, gradients = rng.integers(-4, 5, (2, count)).astype(dtype)
    optimizer = make(learning_rate=0.5, momentum=0.5)
    optimizer.lr_mult = {"b": 2.0}
    for state in (whole, *parts):
        state.weights[:], state.gradients[:] = first, gradients
    rules = [_rule(optimizer, state) for state in (whole, *parts)]
    for keys in steps:
        for rule, state in zip(rules, (whole, *parts), strict=True):
            update = _begin(rule, rule.step(), state, keys)
            own_lo, own_hi = state.part(state.to)
            for lo, hi in state.bucket.ranges(keys):
                for at in range(max(lo, own_lo), min(hi, own_hi), block):
                    update(at, min(at + block, hi, own_hi))
    for rank, (rule, state) in enumerate(zip(rules[1:], parts, strict=True)):
        own = slice(*to.part(rank, state.bucket.count))
        assert state.weights[own].tobytes() == whole.weights[own].tobytes()
        assert state.weights[: own.start].tobytes() == first[: own.start].tobytes()
        assert state.weights[own.stop :].tobytes() == first[own.stop :].tobytes()
        for entry in state.bucket.entries:
            slot = _slot(state, entry.key)
            lo, hi = rule.part(slot)
            assert 0 <= lo <= hi <= entry.spec.size
            assert rule.count(slot) == rules[0].count(_slot(whole, entry.key))
            all_of_key = rules[0].states(_slot(whole, entry.key))["momentum"]
            assert rule.states(slot)["momentum"].tobytes() == all_of_key[lo:hi].tobytes()
    sizes = [rule.state_bytes(state) for rule, state in zip(rules[1:], parts, strict=True)]
    assert sum(sizes) == rules[0].state_bytes(whole)


def test_a_reset_key_has_a_copy_of_its_weights_in_each_part() -> None:
    for rank in range(2):
        state = _bucket(to=Owners([0, 80, 192]), rank=rank)
        state.weights[:] = np.arange(state.bucket.count)
        rule = _rule(Averaging(), state)
        slot = _slot(state, "b")
        slot.weight[:] = -np.arange(100)
        rule.reset(slot)
        lo, hi = rule.part(slot)
        assert (lo, hi) == [(0, 16), (16, 100)][rank]
        assert rule.states(slot)["momentum"].tolist() == (-np.arange(100.0))[lo:hi].tolist()
