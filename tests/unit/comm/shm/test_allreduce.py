"""Every phase of an allreduce in shared memory is needed, and the sums show it."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import numpy as np
import pytest

from ncclkv import testing
from ncclkv.comm.base import Communicator
from ncclkv.comm.host import threads
from ncclkv.comm.shm import allreduce
from ncclkv.comm.shm.sequence import DONE, ENTERED, CollectiveSlot
from ncclkv.comm.shm.staging import INLINE_BYTES
from tests.harness.slow import stretched

RANKS = 4
STEPS = 25
COUNT = INLINE_BYTES // 4 + 1000

HostBuffers = Callable[[Communicator], np.ndarray]


def common(comm: Communicator) -> np.ndarray:
    """Return one result that all ranks read."""
    memory = comm.node_shared(4 * COUNT)
    assert memory is not None, "the ranks share no memory here"
    return memory.view(np.float32)


def own(comm: Communicator) -> np.ndarray:
    """Return a result in memory that neighbours write to."""
    return comm.allocate(4 * COUNT).view(np.float32)


def plain(comm: Communicator) -> np.ndarray:
    """Return a result that only its rank can access."""
    return np.zeros(COUNT, np.float32)


def sums(place: HostBuffers) -> None:
    """Sum numbers that change every step, with ranks that arrive at random times."""
    comm = threads.world()
    rng = random.Random(comm.rank)
    send, receive = own(comm), place(comm)
    ones = comm.size * (comm.size + 1) / 2
    for step in range(1, STEPS):
        send[:] = step * (comm.rank + 1)
        time.sleep(rng.choice([0, 0, 0.002]))
        comm.allreduce(send, receive).wait()
        wrong = np.flatnonzero(receive != step * ones)
        assert not wrong.size, f"rank {comm.rank}, step {step}: wrong from {wrong[0]} on"
    comm.close()


COPIED, SUMMED = ENTERED + 1, ENTERED + 2
"""Additional phases of a sum through the double buffer."""


@pytest.mark.parametrize("place", [common, own, plain])
def test_sums_are_correct_without_barriers(place: HostBuffers) -> None:
    testing.run_ranks(RANKS, sums, place, timeout=stretched(20.0))


@pytest.mark.usefixtures("in_c")
@pytest.mark.parametrize("place", [common, own])
def test_sums_with_non_temporal_stores_are_correct(
    monkeypatch: pytest.MonkeyPatch, place: HostBuffers
) -> None:
    monkeypatch.setattr(allreduce, "STREAM_BYTES", 0)
    testing.run_ranks(RANKS, sums, place, timeout=stretched(20.0))


@pytest.mark.parametrize("place", [own, plain])
def test_sums_through_the_double_buffer_are_correct(
    monkeypatch: pytest.MonkeyPatch, place: HostBuffers
) -> None:
    monkeypatch.setenv("NCCLKV_NODE_MEMORY", "halves")
    testing.run_ranks(RANKS, sums, place, timeout=stretched(20.0))


@pytest.mark.parametrize("place", [common, own])
@pytest.mark.parametrize("phase", [ENTERED, DONE])
def test_without_a_phase_a_sum_is_wrong(
    monkeypatch: pytest.MonkeyPatch, place: HostBuffers, phase: int
) -> None:
    goes_wrong_without(phase, monkeypatch, place)


@pytest.mark.parametrize("place", [own, plain])
@pytest.mark.parametrize("phase", [COPIED, SUMMED])
def test_without_a_phase_a_sum_through_the_double_buffer_is_wrong(
    monkeypatch: pytest.MonkeyPatch, place: HostBuffers, phase: int
) -> None:
    monkeypatch.setenv("NCCLKV_NODE_MEMORY", "halves")
    goes_wrong_without(phase, monkeypatch, place)


def goes_wrong_without(phase: int, patch: pytest.MonkeyPatch, place: HostBuffers) -> None:
    """Remove the wait for a phase, and check that the sums are wrong."""
    stragglers = CollectiveSlot.stragglers
    patch.setattr(
        CollectiveSlot, "stragglers", lambda turn, n: [] if n == phase else stragglers(turn, n)
    )
    with pytest.raises(Exception, match=r"wrong from|different calls"):
        testing.run_ranks(RANKS, sums, place, timeout=stretched(20.0))
