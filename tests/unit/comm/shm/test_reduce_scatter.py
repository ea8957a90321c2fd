"""Every phase of the other collectives in shared memory is needed, and the results show it."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from ncclkv import testing
from ncclkv.comm.base import Communicator
from ncclkv.comm.host import threads
from ncclkv.comm.shm import header, reduce_scatter
from ncclkv.comm.shm.sequence import DONE, ENTERED, CollectiveSlot
from ncclkv.comm.shm.staging import INLINE_BYTES
from tests.harness.slow import stretched

RANKS = 4
STEPS = 25
COUNT = INLINE_BYTES // 4 + 1000

WRONG = "wrong from|different calls"

HostBuffers = Callable[[Communicator], np.ndarray]


def own(comm: Communicator) -> np.ndarray:
    """Return memory that neighbours can read."""
    return comm.allocate(4 * COUNT).view(np.float32)


def plain(comm: Communicator) -> np.ndarray:
    """Return memory that only its rank can access."""
    return np.zeros(COUNT, np.float32)


def jitter(comm: Communicator) -> Iterator[int]:
    """Yield steps of a rank that arrives at random times."""
    rng = random.Random(comm.rank)
    for step in range(1, STEPS):
        yield step
        time.sleep(rng.choice([0, 0, 0.002]))


def check(comm: Communicator, step: int, got: np.ndarray, wanted: object) -> None:
    """Fail if an array does not hold the step's number."""
    wrong = np.flatnonzero(got != wanted)
    assert not wrong.size, f"rank {comm.rank}, step {step}: wrong from {wrong[0]} on"


def scatters(place: HostBuffers) -> None:
    """Reduce and scatter numbers that change every step."""
    comm = threads.world()
    send = place(comm)
    receive = np.zeros(COUNT // comm.size, np.float32)
    ones = comm.size * (comm.size + 1) / 2
    for step in jitter(comm):
        send[:] = step * (comm.rank + 1)
        comm.reduce_scatter(send, receive).wait()
        check(comm, step, receive, step * ones)
    comm.close()


def gathers(place: HostBuffers) -> None:
    """Gather numbers that change every step."""
    comm = threads.world()
    send, receive = place(comm), np.zeros(comm.size * COUNT, np.float32)
    ranks = np.repeat(np.arange(1, comm.size + 1), COUNT)
    for step in jitter(comm):
        send[:] = step * (comm.rank + 1)
        comm.allgather(send, receive).wait()
        check(comm, step, receive, step * ranks)
    comm.close()


def broadcasts(place: HostBuffers) -> None:
    """Broadcast numbers that change every step, from each rank in turn."""
    comm = threads.world()
    buffer = place(comm)
    for step in jitter(comm):
        root = step % comm.size
        buffer[:] = step if comm.rank == root else -step
        comm.broadcast(buffer, root).wait()
        check(comm, step, buffer, step)
    comm.close()


def pairs(place: HostBuffers) -> None:
    """Start two collectives, and pause before the waits."""
    comm = threads.world()
    rng = random.Random(comm.rank)
    sends = [place(comm), place(comm)]
    receives = [np.zeros(COUNT // comm.size, np.float32) for _ in sends]
    ones = comm.size * (comm.size + 1) / 2
    for step in jitter(comm):
        for number, send in enumerate(sends, start=1):
            send[:] = number * step * (comm.rank + 1)
        works = [comm.reduce_scatter(*each) for each in zip(sends, receives, strict=True)]
        time.sleep(rng.choice([0, 0.002]))
        for work in works:
            work.wait()
        for number, receive in enumerate(receives, start=1):
            check(comm, step, receive, number * step * ones)
    comm.close()


def leave_out(monkeypatch: pytest.MonkeyPatch, phase: int) -> None:
    """Remove the wait for a phase."""
    stragglers = CollectiveSlot.stragglers
    monkeypatch.setattr(
        CollectiveSlot, "stragglers", lambda turn, n: [] if n == phase else stragglers(turn, n)
    )


def linger(monkeypatch: pytest.MonkeyPatch) -> None:
    """Delay the reads of each rank."""
    for name in ("check", "check_all"):
        held = getattr(header, name)

        def late(*args: object, held: Callable[..., None] = held) -> None:
            held(*args)
            time.sleep(random.choice([0, 0.003]))

        monkeypatch.setattr(header, name, late)


@pytest.mark.parametrize("nodes", ["", "2"], ids=["one node", "two nodes"])
@pytest.mark.parametrize("place", [own, plain])
@pytest.mark.parametrize("body", [scatters, gathers, broadcasts, pairs])
def test_results_are_correct_without_barriers(
    monkeypatch: pytest.MonkeyPatch,
    body: Callable[[HostBuffers], None],
    place: HostBuffers,
    nodes: str,
) -> None:
    monkeypatch.setenv("NCCLKV_RANKS_PER_NODE", nodes)
    monkeypatch.setattr(reduce_scatter, "HALF_BYTES", COUNT)  # several chunks
    linger(monkeypatch)
    testing.run_ranks(RANKS, body, place, timeout=stretched(20.0))


@pytest.mark.parametrize(
    ("body", "place", "phase", "nodes"),
    [
        (scatters, own, ENTERED, ""),
        (scatters, own, DONE, ""),
        (scatters, plain, ENTERED, ""),
        (scatters, plain, ENTERED + 1, ""),
        (gathers, own, ENTERED, ""),
        (gathers, own, DONE, ""),
        (broadcasts, own, ENTERED, ""),
        (broadcasts, own, DONE, ""),
        (broadcasts, plain, ENTERED, ""),
        (broadcasts, own, ENTERED, "2"),
        (broadcasts, own, DONE, "2"),
        (broadcasts, plain, ENTERED, "2"),
    ],
)
def test_without_a_phase_results_are_wrong(
    monkeypatch: pytest.MonkeyPatch,
    body: Callable[[HostBuffers], None],
    place: HostBuffers,
    phase: int,
    nodes: str,
) -> None:
    monkeypatch.setenv("NCCLKV_RANKS_PER_NODE", nodes)
    monkeypatch.setattr(reduce_scatter, "HALF_BYTES", COUNT)  # several chunks
    linger(monkeypatch)
    leave_out(monkeypatch, phase)
    with pytest.raises(Exception, match=WRONG):
        testing.run_ranks(RANKS, body, place, timeout=stretched(20.0))


def test_copies_that_ignore_earlier_readers_are_wrong(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(CollectiveSlot, "unfinished", lambda slot: [])
    linger(monkeypatch)
    with pytest.raises(Exception, match=WRONG):
        testing.run_ranks(RANKS, pairs, plain, timeout=stretched(20.0))


def test_a_barrier_without_its_phase_releases_a_rank_early(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def body() -> None:
        comm = threads.world()
        time.sleep(0.02 * (comm.size - comm.rank))
        came = time.monotonic()
        comm.barrier().wait()
        times = comm.control.allgather((came, time.monotonic()))
        assert min(left for _, left in times) >= max(came for came, _ in times), "wrong from start"
        comm.close()

    testing.run_ranks(RANKS, body, timeout=stretched(20.0))
    leave_out(monkeypatch, ENTERED)
    with pytest.raises(Exception, match=WRONG):
        testing.run_ranks(RANKS, body, timeout=stretched(20.0))
