"""Ranks of a node that make different calls raise an error that names both."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from ncclkv import testing
from ncclkv.comm.base import Communicator
from ncclkv.comm.host import threads
from ncclkv.comm.shm import header, sequence
from ncclkv.comm.shm.allocator import Offset
from ncclkv.comm.shm.header import Place
from ncclkv.comm.types import Work
from ncclkv.errors import KVStoreError
from tests.conformance.communicator import COMPLEX, FLOATS, INTEGERS
from tests.harness.slow import stretched

Launch = Callable[[Communicator, int], Work]

SIZE = 2


def floats(count: int) -> np.ndarray:
    return np.ones(count, np.float32)


def total(comm: Communicator, count: int) -> Work:
    return comm.allreduce(floats(count), floats(count))


def scatter(comm: Communicator, count: int) -> Work:
    return comm.reduce_scatter(floats(count), floats(count // comm.size))


def largest(comm: Communicator, count: int) -> Work:
    return comm.reduce_scatter(floats(count), floats(count // comm.size), "max")


def gather(comm: Communicator, count: int) -> Work:
    return comm.allgather(floats(count), floats(count * comm.size))


def gather_bytes(comm: Communicator, count: int) -> Work:
    send = np.ones(4 * count, np.uint8)
    return comm.allgather(send, np.ones(comm.size * send.size, np.uint8))


def barrier(comm: Communicator, count: int) -> Work:
    return comm.barrier()


def cast(comm: Communicator, count: int) -> Work:
    return comm.broadcast(floats(count), 0)


def words(launch: Launch, nbytes: int) -> str:
    """Return the text of a call."""
    return {
        total: f"a reduction of {nbytes} bytes to all ranks (float32, sum)",
        scatter: f"a reduce_scatter of {nbytes} bytes (float32, sum)",
        largest: f"a reduce_scatter of {nbytes} bytes (float32, max)",
        gather: f"an allgather of {nbytes} bytes from each rank (float32)",
        gather_bytes: f"an allgather of {nbytes} bytes from each rank (uint8)",
        barrier: "a barrier",
        cast: f"a broadcast of {nbytes} bytes from rank 0 (float32)",
    }[launch]


def failures(body: Callable[[Communicator], None], size: int = SIZE) -> list[str]:
    """Return the errors of all ranks."""

    return testing.run_ranks(size, failure, body, timeout=stretched(20.0))


def failure(body: Callable[[Communicator], None]) -> str:
    """Return a rank's error; the rank exits when all have failed or all have succeeded."""
    world = threads.world(5.0)
    comm = world.duplicate()
    try:
        body(comm)
        text = ""
    except KVStoreError as error:
        text = f"{type(error).__name__}: {error}"
    world.control.barrier("all are done")
    comm.abort("as expected")
    return text


@pytest.mark.parametrize("count", [10, 2_000_000])
@pytest.mark.parametrize(
    ("here", "there"),
    [
        (total, scatter),
        (scatter, largest),
        (scatter, gather),
        (gather, gather_bytes),
        (total, barrier),
        (gather, barrier),
    ],
)
def test_calls_that_differ_are_named(here: Launch, there: Launch, count: int) -> None:
    calls = (here, there)
    texts = failures(lambda comm: calls[comm.rank](comm, count).wait())
    for rank, text in enumerate(texts):
        mine, theirs = (words(calls[each], 4 * count) for each in (rank, 1 - rank))
        assert text == (
            f"OrderMismatch: rank {rank}: rank {1 - rank} called {theirs} where this rank called "
            f"{mine}; the two ranks made different calls"
        )


@pytest.mark.parametrize("launch", [scatter, gather])
@pytest.mark.parametrize("count", [10, 100_000])
def test_lengths_that_differ_are_named(launch: Launch, count: int) -> None:
    texts = failures(lambda comm: launch(comm, count * (comm.rank + 1)).wait())
    sizes = 4 * count, 8 * count
    for rank, text in enumerate(texts):
        assert text == (
            f"OrderMismatch: rank {rank}: rank {1 - rank} sent {sizes[1 - rank]} bytes where "
            f"{sizes[rank]} were expected; the two ranks made different calls"
        )


@pytest.mark.parametrize("other", [total, scatter, gather, barrier])
def test_a_broadcast_met_by_another_call_is_named(other: Launch) -> None:
    def body() -> str:
        comm = threads.world(5.0)
        if comm.rank == 0:
            cast(comm, 10).wait()  # a small array, so the root need not wait
            return ""
        with pytest.raises(KVStoreError) as caught:
            other(comm, 10).wait()
        return str(caught.value)

    _, text = testing.run_ranks(SIZE, body, timeout=stretched(20.0))
    assert f"rank 1: rank 0 called {words(cast, 40)} where this rank called" in text
    assert words(other, 40) in text


def test_a_header_is_equal_after_packing() -> None:
    for dtype in [np.dtype(bool), *INTEGERS, *FLOATS, *COMPLEX]:
        array = np.zeros(5, dtype)
        for call in (
            header.reduction(array.nbytes, dtype, "sum", None, sharded_update=False),
            header.reduction(array.nbytes, dtype, "prod", 1000, sharded_update=True),
            header.broadcast(array, 0),
            header.broadcast(array, 7),
            header.reduce_scatter(array, "min"),
            header.allgather(array),
            header.BARRIER,
            header.program("a test", 7),
        ):
            assert header._unpack(*call.pack()) == call


def test_a_program_without_a_size_has_its_name_alone() -> None:
    assert header.program("a test", 7).describe() == "a test of 7 bytes"
    assert header.program("a test", 0).describe() == "a test"


def test_names_of_programs_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(header, "_program_names", {})
    monkeypatch.setattr(header, "_MAX_NAMES", 2)
    calls = [header.program(f"program {number}", 0) for number in range(3)]
    assert [str(call) for call in calls] == ["another program", "another program", "program 2"]


def test_places_of_arrays_are_equal_after_packing() -> None:
    call = header.program("a test", 7)
    offset = Offset(1 << 40, 4096, 256)
    for turn in range(2):
        for place in (None, Place(offset, shared=False), Place(offset, shared=True)):
            words = [0, *header.write(call, None, None)]
            position, packed = header.place_words(turn, place)
            words[position : position + len(packed)] = packed
            assert header.place(turn, words) == place
            assert header.place(1 - turn, words) is None
            assert len(words) == sequence.HEADER_WORDS - 1


def test_programs_have_different_marks() -> None:
    calls = [header.program(name, nbytes) for name in ("one", "other") for nbytes in (0, 1, 2**40)]
    marks = {call.mark() for call in calls}
    assert len(marks) == len(calls)
    assert all(-(1 << 63) <= mark < 1 << 63 for mark in marks)


def test_differing_short_sums_are_detected_on_other_nodes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NCCLKV_RANKS_PER_NODE", "2")

    def body(comm: Communicator) -> None:
        # One byte a rank of the node: a refusal must differ from such data.
        receive = comm.node_shared(2)
        assert receive is not None
        op = "max" if comm.rank == 0 else "sum"
        comm.allreduce(np.ones(2, np.uint8), receive, op).wait()

    for rank, text in enumerate(failures(body, size=4)):
        assert text.startswith(f"OrderMismatch: rank {rank}: rank"), text
        assert "made different calls" in text


@pytest.mark.parametrize("count", [1, 2, 3])
def test_short_sums_of_several_nodes_are_named(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setenv("NCCLKV_RANKS_PER_NODE", "2")

    def body() -> None:
        comm = threads.world(5.0)
        receive = comm.node_shared(count)
        assert receive is not None
        for step in range(10):
            comm.allreduce(np.full(count, step + comm.rank, np.uint8), receive).wait()
            assert receive.tolist() == [3 * step + 3] * count
            comm.barrier().wait()
        comm.close()

    testing.run_ranks(3, body, timeout=stretched(20.0))


@pytest.mark.parametrize("node", [0, 1])
def test_a_broadcast_that_one_node_takes_for_another_fails_there(
    monkeypatch: pytest.MonkeyPatch, node: int
) -> None:
    monkeypatch.setenv("NCCLKV_RANKS_PER_NODE", "2")
    root = 2 * (1 - node)

    def body(comm: Communicator) -> None:
        fails = comm.rank // 2 == node
        comm.broadcast(floats(100_000 + fails), root).wait(5.0 if fails else 0.3)

    texts = failures(body, size=4)
    # The root has more to send, so it would notice an exit of its peers.
    assert texts[root].startswith("CommTimeout")
    assert f"for rank {2 * node};" in texts[root]
    first, second = texts[2 * node : 2 * node + 2]
    assert first.startswith(f"OrderMismatch: rank {2 * node}: rank {root} sent "), first
    assert second == (
        f"OrderMismatch: rank {2 * node + 1}: rank {2 * node} found that ranks made different calls"
    )
