"""Events of stores of several ranks: equal numbers, exact sizes, and the rank that is late."""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import ncclkv
from ncclkv.engine.events import Events
from ncclkv.engine.instrument import Instrument, Launch
from tests.harness.context import context_of

pytestmark = [
    pytest.mark.limit(60),
    pytest.mark.skipif(MPI.COMM_WORLD.size == 1, reason="a rank alone waits for nobody"),
]
SLEEP = 0.05
SIZES = {"copies of 4 KiB": 4 * 1024, "weights of 1 MiB": 1024 * 1024}
DELAYED = [(name, rank) for name in SIZES for rank in range(MPI.COMM_WORLD.size)]


class Log(Instrument):
    """Records the events of collectives."""

    def __init__(self) -> None:
        self.launches: list[tuple[int, str, int]] = []
        self.wires: list[int] = []
        self.completions: list[tuple[int, float]] = []
        self.waits: list[tuple[int, float]] = []
        self.late_ranks: list[tuple[int, int, float]] = []

    def launched(self, launch: Launch) -> None:
        self.launches.append((launch.seq, launch.label, launch.nbytes))
        self.wires.append(launch.wire)

    def completed(self, seq: int, seconds: float) -> None:
        self.completions.append((seq, seconds))

    def waited(self, seq: int, seconds: float) -> None:
        self.waits.append((seq, seconds))

    def late(self, seq: int, rank: int, seconds: float) -> None:
        self.late_ranks.append((seq, rank, seconds))


class Failing(Instrument):
    """Raises an exception at each launch."""

    def launched(self, launch: Launch) -> None:
        raise ValueError("full disk")


def events_of(kv: ncclkv.KVStore) -> Events:
    return context_of(kv).engine.events


def push(kv: ncclkv.KVStore, nbytes: int) -> None:
    kv.push("w", np.full(nbytes // 4, kv.rank + 1.0, "f4"))


def total(kv: ncclkv.KVStore) -> float:
    return float(sum(range(kv.num_workers + 1)))


def neighbours(comm: MPI.Intracomm) -> range:
    """Return the ranks of this rank's node, which may be a part of a machine."""
    size = int(os.environ.get("NCCLKV_RANKS_PER_NODE", 0)) or comm.size
    first = comm.rank // size * size
    return range(first, min(first + size, comm.size))


def shares_memory(comm: MPI.Intracomm, nbytes: int) -> bool:
    """Return whether this rank and its neighbours enter a sum in shared memory."""
    node = neighbours(comm)
    if os.environ.get("NCCLKV_NODE_MEMORY") == "messages" or len(node) == 1:
        return False
    return len(node) == comm.size or nbytes == SIZES["weights of 1 MiB"]


@pytest.mark.parametrize("update_on", ["every_rank", "root"])
def test_all_ranks_number_the_same_collectives(comm_world: MPI.Intracomm, update_on: Any) -> None:
    with ncclkv.create("dist_sync", update_on=update_on, bucket_bytes=4096) as kv:
        kv.init(["a", "b"], [np.zeros(1024, "f4"), np.zeros(2048, "f4")])
        log = Log()
        if kv.rank == 0:
            events_of(kv).add(log)
        kv.push(["a", "b"], [np.ones(1024, "f4"), np.ones(2048, "f4")])
        kv.pull("b")
        if kv.rank:
            events_of(kv).add(log)
        kv.push(["a", "b"], [np.ones(1024, "f4"), np.ones(2048, "f4")])
        kv.pull("b")
        kv.wait()
        size = kv.num_workers
        assert (kv.pull("a") == size).all(), f"rank {kv.rank}"
    first, second = ("key 'a'", 4096), ("key 'b'", 8192)
    # The root broadcasts what a pull reads, and the rest at the wait.
    step = [first, second] if update_on == "every_rank" else [first, second, second]
    expected = [(seq, *each) for seq, each in enumerate([*step, *step], 1)]
    expected += [] if update_on == "every_rank" else [(7, *first)]
    launches = log.launches if comm_world.rank == 0 else expected[: len(step)] + log.launches
    assert launches == expected, f"rank {comm_world.rank}"
    completed = sorted(seq for seq, _ in log.completions)
    assert completed == [seq for seq, *_ in log.launches], f"rank {comm_world.rank}"
    assert sorted(seq for seq, _ in log.waits) == completed


def test_the_bytes_that_a_rank_sends(comm_world: MPI.Intracomm) -> None:
    with ncclkv.create("dist_sync") as kv:
        kv.init("w", np.zeros(1024, "f4"))
        log = Log()
        events_of(kv).add(log)
        push(kv, 4096)
        assert (kv.pull("w") == total(kv)).all(), f"rank {kv.rank}"
    # Every other rank receives a short array whole.
    assert log.wires == [4096 * (comm_world.size - 1)], f"rank {comm_world.rank}"


@pytest.mark.parametrize(("size", "delayed"), DELAYED)
def test_every_rank_names_the_rank_that_was_late(
    comm_world: MPI.Intracomm, size: str, delayed: int
) -> None:
    nbytes, log = SIZES[size], Log()
    with ncclkv.create("dist_sync") as kv:
        kv.init("w", np.zeros(nbytes // 4, "f4"))
        push(kv, nbytes)
        kv.wait()
        events_of(kv).add(log)
        begin = time.monotonic()
        comm_world.barrier()
        if kv.rank != delayed:
            push(kv, nbytes)
        comm_world.barrier()  # all others are in the sum
        if kv.rank == delayed:
            time.sleep(SLEEP)
            push(kv, nbytes)
        kv.wait()
        took = time.monotonic() - begin
        assert (kv.pull("w") == total(kv)).all(), f"rank {kv.rank}"
    node, what = neighbours(comm_world), f"rank {comm_world.rank} of node"
    assert log.launches == [(2, "key 'w'", nbytes)], what
    ((seq, seconds),) = log.completions
    assert seq == 2
    assert 0 < seconds < took, what
    assert 0 <= log.waits[0][1] <= seconds, what
    if comm_world.rank != delayed:
        assert seconds > SLEEP, what
    everything = comm_world.allgather(log.late_ranks)
    assert all(everything[other] == log.late_ranks for other in node), everything
    if not shares_memory(comm_world, nbytes):
        assert log.late_ranks == [], what
        return
    ((seq, rank, late),) = log.late_ranks
    assert seq == 2
    assert rank in node, what
    if delayed in node:
        assert rank == delayed, what
        assert SLEEP <= late < took, what


def test_an_instrument_that_raises_on_one_rank_delays_no_other(comm_world: MPI.Intracomm) -> None:
    with ncclkv.create("dist_sync") as kv:
        kv.init("w", np.zeros(1024, "f4"))
        log = Log()
        events_of(kv).add(log)
        if kv.rank == kv.num_workers - 1:
            events_of(kv).add(Failing())
        for _ in range(3):
            push(kv, 4096)
            assert (kv.pull("w") == total(kv)).all(), f"rank {kv.rank}"
        assert events_of(kv).listeners["launched"] == [log], f"rank {kv.rank}"
    assert [seq for seq, *_ in log.launches] == [1, 2, 3], f"rank {comm_world.rank}"
    assert [seq for seq, _ in log.completions] == [1, 2, 3], f"rank {comm_world.rank}"


class Blocked(Instrument):
    """Records the waits for other ranks."""

    def __init__(self) -> None:
        self.waits: list[tuple[str, tuple[int, ...], float]] = []
        self.begun_waits: list[tuple[str, tuple[int, ...]]] = []

    def waiting(self, what: str, ranks: Any) -> None:
        self.begun_waits.append((what, tuple(ranks)))

    def blocked(self, what: str, ranks: Any, seconds: float) -> None:
        self.waits.append((what, tuple(ranks), seconds))


@pytest.mark.parametrize("nbytes", SIZES.values(), ids=SIZES)
def test_a_wait_names_the_ranks_that_come_last(comm_world: MPI.Intracomm, nbytes: int) -> None:
    blocked, last, middle = Blocked(), comm_world.size - 1, min(1, comm_world.size - 2)
    with ncclkv.create("dist_sync") as kv:
        kv.init("w", np.zeros(nbytes // 4, "f4"))
        push(kv, nbytes)
        kv.wait()
        kv.add_instrument(blocked)
        comm_world.barrier()
        time.sleep(0.4 if kv.rank == last else 0.1 if kv.rank == middle else 0)
        push(kv, nbytes)
        kv.wait()
        kv.remove_instrument(blocked)
        waits, begun = list(blocked.waits), list(blocked.begun_waits)
        kv.barrier()
        assert (kv.pull("w") == total(kv)).all()
        assert blocked.waits == waits, "a removed instrument receives waits"
    # Between nodes a rank may wait for a neighbour that passes the last rank's part on.
    if comm_world.rank != last and len(neighbours(comm_world)) == comm_world.size:
        longest = max(waits, key=lambda wait: wait[2])
        assert longest[1] == (last,), waits
        assert 0.2 < longest[2] < 30, waits
        assert "key 'w'" in longest[0]
        assert begun[-1] == (longest[0], (last,)), begun


def test_an_instrument_costs_nothing_after_its_end(comm_world: MPI.Intracomm) -> None:
    """Compare a communicator's state and a store's listeners with those before."""
    with ncclkv.create("dist_sync") as kv:
        blocked = Blocked()
        kv.add_instrument(blocked)
        kv.remove_instrument(blocked)
        assert events_of(kv).listeners == {}
        progress: Any = getattr(context_of(kv).comm, "_progress", None)
        assert progress.observer is None
