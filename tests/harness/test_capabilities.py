"""Cases in a memory whose communicators promise less than those of hosts."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from ncclkv.comm.host import threads
from ncclkv.comm.host.communicator import HostCommunicator
from ncclkv.errors import CommAborted, CommTimeout
from ncclkv.testing import run_ranks
from tests.conformance import reductions
from tests.conformance.capabilities import HostBuffers, near, use_buffers
from tests.conformance.communicator_all import communicator_failures
from tests.nccl.gpu_buffers import GpuBuffers

DTYPES = [np.float16, ml_dtypes.bfloat16, np.float32, np.float64, np.complex64]


@pytest.mark.parametrize("dtype", DTYPES)
def test_another_order_is_near_and_another_number_is_not(dtype: type) -> None:
    parts = np.random.default_rng(3).standard_normal((4, 5000)).astype(dtype)
    forward, backward = parts[0], parts[3]
    for rank in (1, 2, 3):
        forward = (forward + parts[rank]).astype(dtype)
        backward = (backward + parts[3 - rank]).astype(dtype)
    assert forward.tobytes() != backward.tobytes()
    assert near(forward, backward, 4)
    assert not near(forward, (backward + 1).astype(dtype), 4)
    assert not near((forward - parts[0]).astype(dtype), forward, 4)


def test_whole_numbers_are_equal_or_not() -> None:
    one = np.arange(5, dtype=np.int32)
    assert near(one, one.copy(), 4)
    assert not near(one, one + 1, 4)


OPS = {"sum": np.add, "max": np.fmax, "min": np.fmin, "prod": np.multiply}
OTHER = {3: np.array([1, 1, -np.inf], np.float32), 2: np.zeros(2, np.float16)}
"""Values of rank 1, by their size."""


class LikeNccl:
    """The store of rank 0 of two, whose extremes are fmaxf's and fminf's, as NCCL's are."""

    num_workers, rank = 2, 0

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.ops: dict[str, str] = {}

    def init(self, key: str, value: Any, op: str = "sum") -> None:
        self.ops[key] = op

    def push(self, key: str, value: Any) -> None:
        mine = sum(value) if isinstance(value, list) else value
        self.values[key] = OPS[self.ops[key]](mine, OTHER[mine.size])

    def pull(self, key: str, out: Any) -> None:
        out[:] = self.values[key]


def test_a_nan_may_be_dropped_where_the_place_does_not_promise_that_it_wins() -> None:
    case = reductions.overflow_infinity_and_nan_follow_ieee
    with np.errstate(over="ignore"), use_buffers(HostBuffers()), pytest.raises(AssertionError):
        case(LikeNccl)
    lax = HostBuffers()
    lax.capabilities = replace(HostBuffers.capabilities, nan_wins=False)
    with np.errstate(over="ignore"), use_buffers(lax):
        case(LikeNccl)


def test_an_abort_that_takes_long_leaves_the_next_duplicate_its_deadline(monkeypatch) -> None:
    abort = HostCommunicator.abort

    def slowly(self: HostCommunicator, reason: str) -> None:
        if self.rank == 0 and reason == "the case is over":
            time.sleep(0.3)
        abort(self, reason)

    monkeypatch.setattr(HostCommunicator, "abort", slowly)

    def body() -> None:
        comm = threads.world(20.0)
        for _ in range(2):
            with communicator_failures.broken(comm, communicator_failures.deadline()):
                pass
        comm.close()

    run_ranks(2, body)


def test_lengths_that_differ_need_only_end_in_time_on_a_gpu() -> None:
    place = GpuBuffers()
    place.capabilities = replace(GpuBuffers.capabilities, mismatch_seconds=0.1, slack=0.1)
    with place.mismatch("words of a host"):
        raise CommTimeout("waited")
    with place.mismatch():
        pass
    with pytest.raises(AssertionError), place.mismatch():
        time.sleep(0.3)
    with pytest.raises(CommAborted), place.mismatch():
        raise CommAborted("something else")
