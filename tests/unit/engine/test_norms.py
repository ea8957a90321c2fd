"""Updates in two passes: what is measured, and by whom."""

from __future__ import annotations

from itertools import pairwise
from threading import Barrier, Thread
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ncclkv.comm.destinations import EVERYONE, Owners, To
from ncclkv.comm.solo import SoloCommunicator
from ncclkv.comm.types import DoneWork
from ncclkv.engine.bucket_state import BucketState
from ncclkv.engine.fused_rule import FusedRule
from ncclkv.engine.norms import norm_updates
from ncclkv.engine.reductions import Reductions
from ncclkv.kernels.host import HostKernels
from ncclkv.optimizer import LAMB, LARS, SGD, Optimizer
from ncclkv.table.bucket import make_buckets
from ncclkv.table.registry import KeySpec

SIZES = {"a": 10, "b": 3000, "c": 3}


class Ranks(SoloCommunicator):
    """One rank of several, whose allreduce adds what the others would send.

    Attributes
    ----------
    others : list of ndarray
        Arrays of the other ranks for the next allreduces, in order.
    calls : list of str
        Collectives so far.
    """

    def __init__(self, rank: int, size: int, *, first_node: bool = True) -> None:
        super().__init__(60.0)
        self.rank, self.size, self.first_node = rank, size, first_node
        self.others: list[Any] = []
        self.calls: list[str] = []
        self.sent: list[Any] = []

    def allreduce(self, send: Any, receive: Any, op: str = "sum") -> DoneWork:
        self.calls.append("allreduce")
        self.sent.append(send.copy())
        if self.others:
            receive += self.others.pop(0)
        return DoneWork()

    def barrier(self) -> DoneWork:
        self.calls.append("barrier")
        return DoneWork()


def _bucket(comm: Ranks, to: To, index: int = 0, dtype: Any = np.float64) -> BucketState:
    """Return a bucket of three keys, with weights of 2 and gradients of 1."""
    specs = [
        KeySpec(key, number, (size,), np.dtype(dtype))
        for number, (key, size) in enumerate(SIZES.items())
    ]
    (bucket,) = make_buckets(specs, 1 << 20, first=index)
    state = BucketState(bucket, comm, Reductions(comm), to=to)
    for entry in bucket.entries:
        state.weights[entry.lo : entry.hi] = 2
        state.gradients[entry.lo : entry.hi] = 1
    return state


def _launched(
    optimizer: Optimizer, state: BucketState, ranges: list[tuple[int, int]], keys: str = "abc"
) -> FusedRule:
    """Return a rule whose first pass is over the elements of some ranges of a bucket."""
    rule = FusedRule(optimizer, HostKernels())
    rule.allocate(state, state.to)
    _launch(rule, state, ranges, keys)
    return rule


def _launch(
    rule: FusedRule, state: BucketState, ranges: list[tuple[int, int]], keys: str = "abc"
) -> None:
    state.push(set(keys), rule.step())
    rule.count_update(state.bucket, state.waiting)
    spans = [state.span(bounds) for bounds in state.bucket.ranges(keys)]
    for (_, apply), span in zip(rule.target(state, spans, None), spans, strict=True):
        for lo, hi in ranges:
            lo, hi = max(lo, span.lo) - span.lo, min(hi, span.hi) - span.lo
            if apply is not None and lo < hi:
                apply(lo, hi)
    state.end_launch(state.waiting)


def _finish(rule: FusedRule, comm: Ranks, *states: BucketState) -> None:
    assert rule.norms is not None
    rule.norms.finish(comm, states)


def _values(state: BucketState) -> dict[str, list[float]]:
    return {
        entry.key: sorted(set(state.weights[entry.lo : entry.hi].tolist()))
        for entry in state.bucket.entries
    }


def lars() -> LARS:
    return LARS(learning_rate=1.0, eta=0.5)


def test_other_optimizers_have_no_second_pass() -> None:
    assert norm_updates(SGD(), HostKernels()) is None
    assert FusedRule(SGD(), HostKernels()).norms is None


def test_a_rank_with_whole_buckets_makes_no_collective() -> None:
    comm = Ranks(1, 3)
    state = _bucket(comm, EVERYONE)
    rule = _launched(lars(), state, [])
    assert _values(state) == {"a": [2], "b": [2], "c": [2]}
    assert len(state.deferred) == 1
    _finish(rule, comm, state)
    assert comm.calls == []
    assert state.deferred == []
    # The rate is 0.5 * 2 / 1 for each key.
    assert _values(state) == {"a": [1], "b": [1], "c": [1]}
    _finish(rule, comm, state)
    assert _values(state)["a"] == [1], "an update was made twice"


def test_an_owner_adds_the_sums_of_the_others() -> None:
    comm = Ranks(1, 3)
    bounds = [0, 32, 320, _bucket(comm, EVERYONE).bucket.count]
    state = _bucket(comm, Owners(bounds))
    b = state.bucket.entries[1]
    rule = _launched(lars(), state, [(64, 192), (32, 64), (192, 320)])
    own = 320 - b.lo
    # The others have measured the rest of b, with weights of 4 in place of 2.
    comm.others = [np.array([10.0 * 4, 10, (3000 - own) * 16, 3000 - own, 12, 3])]
    _finish(rule, comm, state)
    assert comm.calls == ["allreduce"]
    assert comm.sent[0].tolist() == [0, 0, own * 4, own, 0, 0]
    norm = np.sqrt(own * 4 + (3000 - own) * 16)
    expected = 2 - 0.5 * norm / np.sqrt(3000)
    assert np.allclose(state.weights[b.lo : 320], expected, rtol=1e-15)
    assert (state.weights[320 : b.hi] == 2).all(), "another rank's part was updated"


def _shared(comm: Ranks, index: int = 0) -> BucketState:
    state = _bucket(comm, EVERYONE, index)
    state.node_shared = True
    return state


@pytest.mark.parametrize("first_node", [True, False])
def test_ranks_that_share_weights_wait_for_all_to_have_written(first_node: bool) -> None:
    comm = Ranks(0 if first_node else 2, 4, first_node=first_node)
    state = _shared(comm)
    rule = _launched(lars(), state, [(0, 16)])
    assert rule.norms is not None
    of_a = [0, 0] if first_node else [40, 10]
    comm.others = [np.array([*of_a, 4 * 3000, 3000, 12, 3])]
    _finish(rule, comm, state)
    assert comm.calls == ["allreduce", "barrier"]
    # Each node measures all elements: one of them counts.
    assert comm.sent[0].tolist() == ([40, 10, 0, 0, 0, 0] if first_node else [0] * 6)
    assert _values(state) == {"a": [1], "b": [2], "c": [2]}


def test_sums_begin_at_0_in_each_flush() -> None:
    comm = Ranks(0, 2)
    state = _bucket(comm, Owners([0, 64, _bucket(comm, EVERYONE).bucket.count]))
    rule = _launched(lars(), state, [(0, 64)])
    for weight in (2, 1):
        _finish(rule, comm, state)
        assert comm.sent[-1][:2].tolist() == [10 * weight**2, 10]
        _launch(rule, state, [(0, 64)])


def test_buckets_are_clipped_together() -> None:
    comm = Ranks(0, 1)
    states = [_bucket(comm, EVERYONE, index) for index in range(2)]
    states[0].gradients[:] = 0
    states[1].gradients[:] = 0
    states[0].gradients[0], states[1].gradients[0] = 3, 4
    rule = FusedRule(SGD(learning_rate=1.0, clip_global_norm=2.5), HostKernels())
    for state in states:
        rule.allocate(state, state.to)
        _launch(rule, state, [])
    assert rule.norms is not None
    assert rule.norms.clips
    _finish(rule, comm, *states)
    np.testing.assert_allclose([state.weights[0] for state in states], [0.5, 0], atol=1e-7)


@pytest.mark.parametrize(("rank", "sent"), [(0, 4 + 9), (1, 4)])
def test_a_total_counts_whole_buckets_once(rank: int, sent: float) -> None:
    comm = Ranks(rank, 2)
    states = [_bucket(comm, EVERYONE), _shared(comm, 1)]
    rule = FusedRule(SGD(learning_rate=1.0, clip_global_norm=2.5), HostKernels())
    for state, value in zip(states, (3.0, 2.0), strict=True):
        state.gradients[:] = 0
        state.gradients[0] = value
        rule.allocate(state, state.to)
        _launch(rule, state, [(0, 16)])
    _finish(rule, comm, *states)
    assert comm.sent[0].tolist() == [sent]


@pytest.mark.parametrize("make", [lambda: SGD(clip_global_norm=1.0), lars])
def test_no_bit_depends_on_the_bucket_whose_sum_arrives_first(make: Any) -> None:
    sent = []
    for order in ([0, 1], [1, 0]):
        comm = Ranks(0, 2)
        states = [_shared(comm, index) for index in range(2)]
        rule = FusedRule(make(), HostKernels())
        applies = []
        for index, state in enumerate(states):
            rule.allocate(state, state.to)
            numbers = np.random.default_rng(index).standard_normal(state.bucket.count)
            state.gradients[:] = numbers
            state.push(set("abc"), rule.step())
            (span,) = state.spans(state.waiting)
            ((_, apply),) = rule.target(state, [span], None)
            applies.append(apply)
            state.end_launch(state.waiting)
        for lo in range(0, states[0].bucket.count, 32):
            for index in order:
                applies[index](lo, lo + 32)
        _finish(rule, comm, *states)
        sent.append([each.tolist() for each in comm.sent])
    assert sent[0] == sent[1]


@settings(deadline=None)
@given(
    st.sampled_from([lars, LAMB, lambda: LAMB(clip_global_norm=0.5)]),
    st.lists(st.integers(0, 3136), max_size=3),
    st.integers(1, 900),
)
def test_parts_of_ranks_make_the_update_of_the_whole(
    make: Any, cuts: list[int], block: int
) -> None:
    """Compare a rank alone with the parts of a divided bucket; the sums are exact."""
    whole_comm = Ranks(0, 1)
    whole = _bucket(whole_comm, EVERYONE, dtype=np.float32)
    bounds = [0, *sorted(cuts), whole.bucket.count]
    rule = _launched(make(), whole, [])
    _finish(rule, whole_comm, whole)
    comms = [Ranks(rank, len(bounds) - 1) for rank in range(len(bounds) - 1)]
    states = [_bucket(comm, Owners(bounds), dtype=np.float32) for comm in comms]
    rules = []
    for (lo, hi), state in zip(pairwise(bounds), states, strict=True):
        ranges = [(at, min(at + block, hi)) for at in range(lo, hi, block)]
        rules.append(_launched(make(), state, ranges))
    _reduce_all(rules, comms, states)
    for number, state in enumerate(states):
        own = slice(bounds[number], bounds[number + 1])
        np.testing.assert_array_equal(state.weights[own], whole.weights[own])


def _reduce_all(rules: list[FusedRule], comms: list[Ranks], states: list[BucketState]) -> None:
    """Finish on all ranks, in threads whose allreduces meet."""
    barrier, sent = Barrier(len(comms)), dict[int, Any]()

    def meeting(comm: Ranks) -> Any:
        def allreduce(send: Any, receive: Any, op: str = "sum") -> DoneWork:
            sent[comm.rank] = send.copy()
            barrier.wait(60)
            receive[...] = sum(sent[rank] for rank in range(len(comms)))
            barrier.wait(60)
            return DoneWork()

        return allreduce

    threads = []
    for rule, comm, state in zip(rules, comms, states, strict=True):
        comm.allreduce = meeting(comm)  # type: ignore[method-assign]
        threads.append(Thread(target=_finish, args=(rule, comm, state)))
        threads[-1].start()
    for thread in threads:
        thread.join(60)
