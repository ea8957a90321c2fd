"""Every wait of a program in shared memory is needed, and the results show it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from ncclkv import concurrency, testing
from ncclkv.comm.base import Communicator
from ncclkv.comm.host import threads
from ncclkv.comm.messages.channel import Channel
from ncclkv.comm.shm import header
from ncclkv.comm.shm.copies import ProgramCopies
from ncclkv.comm.shm.header import Place
from ncclkv.comm.shm.sequence import DONE, ENTERED, RING, CollectiveSlot
from ncclkv.comm.shm.staging import INLINE_BYTES
from ncclkv.comm.transport import Steps
from ncclkv.comm.types import Apply, Buffer
from ncclkv.comm.wire import Wire
from ncclkv.testing import Seeded
from tests.harness.extent import some_or_all
from tests.harness.slow import stretched

RANKS = 4
STEPS = 15
SHORT, LONG = 1000, INLINE_BYTES // 4 + 1000
TIMEOUT = stretched(20.0)

WRONG = "wrong from|different calls"

Memory = Callable[[Communicator, int], np.ndarray]


def mapped(comm: Communicator, count: int) -> np.ndarray:
    """Return memory that neighbours can read."""
    return comm.allocate(4 * count).view(np.float32)


def plain(comm: Communicator, count: int) -> np.ndarray:
    """Return memory that only its rank can access."""
    return np.zeros(count, np.float32)


def mixed(comm: Communicator, count: int) -> np.ndarray:
    """Return memory of either kind, by rank."""
    return (mapped if comm.rank % 2 else plain)(comm, count)


def pause() -> None:
    """Wait a short time, or not."""
    concurrency.sleep(random.choice([0, 0, 0.002]))


class ThreeReads:
    """A program of three reads, of arrays that are written as early as they may be.

    Parameters
    ----------
    comm : Communicator
    place : callable
    count : int
    """

    def __init__(self, comm: Communicator, place: Memory, count: int) -> None:
        self._comm = comm
        self._arrays = [place(comm, count) for _ in range(3)]
        self._received = np.zeros((3, comm.size, count), np.float32)
        self.program = comm.program(self._steps, what="a test", nbytes=4 * count)

    def prepare(self, step: int) -> None:
        """Write the numbers of a step."""
        for number, array in enumerate(self._arrays):
            array[:] = self.value(step, number, self._comm.rank)

    def value(self, step: int, number: int, rank: int) -> float:
        """Return a rank's number in one of the arrays."""
        return step * 100 + number * 10 + rank + 1

    def _steps(self, wire: Wire, apply: Apply | None) -> Steps:
        count = self._arrays[0].size
        for number, array in enumerate(self._arrays):
            parts = yield from wire.read(array, lambda reader, owner: (0, count))
            if number:
                self._arrays[number - 1][:] = -1
            pause()
            for rank, part in enumerate(parts):
                self._received[number, rank] = part

    def check(self, step: int) -> None:
        """Overwrite the last array, and check what was received."""
        self._arrays[-1][:] = -2
        for number, parts in enumerate(self._received):
            for rank, part in enumerate(parts):
                wrong = np.flatnonzero(part != self.value(step, number, rank))
                assert not wrong.size, f"rank {self._comm.rank}, step {step}: wrong from {wrong[0]}"


def one_by_one(place: Memory, count: int) -> None:
    """Launch a program again and again."""
    comm = threads.world(TIMEOUT)
    reads = ThreeReads(comm, place, count)
    for step in jitter(comm):
        reads.prepare(step)
        reads.program.launch().wait()
        reads.check(step)
    comm.close()


def jitter(comm: Communicator, steps: int = STEPS) -> Iterator[int]:
    """Yield steps of a rank that arrives at random times."""
    rng = random.Random(comm.rank)
    for step in range(1, steps):
        yield step
        concurrency.sleep(rng.choice([0, 0, 0.002]))


def together(place: Memory, count: int, steps: int = STEPS) -> None:
    """Launch three programs, and wait for them in another order on each rank."""
    comm = threads.world(TIMEOUT)
    all_reads = [ThreeReads(comm, place, count) for _ in range(3)]
    for step in jitter(comm, steps):
        for reads in all_reads:
            reads.prepare(step)
        works = [reads.program.launch() for reads in all_reads]
        for number in np.random.default_rng([step, comm.rank]).permutation(3):
            works[number].wait()
            all_reads[number].check(step)
    comm.close()


@pytest.mark.parametrize("seed", some_or_all(range(36), range(360)))
def test_results_are_correct_in_seeded_worlds(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    places, counts, nodes = (mapped, plain, mixed), (SHORT, LONG), ("", "2", "3")
    monkeypatch.setenv("NCCLKV_RANKS_PER_NODE", nodes[seed % 3])
    random.seed(seed)
    place, count = places[seed // 3 % 3], counts[seed // 9 % 2]
    testing.run_ranks(RANKS, together, place, count, 4, world=Seeded(seed))


def late_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Delay the look of each rank at the headers."""
    held = CollectiveSlot.headers

    def late(slot: CollectiveSlot) -> list[list[int]]:
        pause()
        return held(slot)

    monkeypatch.setattr(CollectiveSlot, "headers", late)


def leave_out(monkeypatch: pytest.MonkeyPatch, phase: int) -> None:
    """Remove the wait for a phase."""
    stragglers = CollectiveSlot.stragglers
    monkeypatch.setattr(
        CollectiveSlot, "stragglers", lambda slot, n: [] if n == phase else stragglers(slot, n)
    )


@pytest.mark.parametrize("nodes", ["", "2", "3"], ids=["one node", "two nodes", "uneven nodes"])
@pytest.mark.parametrize("count", [SHORT, LONG])
@pytest.mark.parametrize("place", [mapped, plain, mixed])
@pytest.mark.parametrize("body", [one_by_one, together])
def test_results_are_correct(
    monkeypatch: pytest.MonkeyPatch,
    body: Callable[[Memory, int], None],
    place: Memory,
    count: int,
    nodes: str,
) -> None:
    monkeypatch.setenv("NCCLKV_RANKS_PER_NODE", nodes)
    late_headers(monkeypatch)
    testing.run_ranks(RANKS, body, place, count, timeout=TIMEOUT)


@pytest.mark.parametrize(
    ("count", "phase", "nodes"),
    [
        (SHORT, ENTERED, ""),
        (SHORT, ENTERED + 2, ""),
        (SHORT, ENTERED + 2, "2"),
        (LONG, ENTERED, ""),
        (LONG, ENTERED + 2, ""),
        (LONG, ENTERED + 2, "2"),
        (LONG, DONE, ""),
        (LONG, DONE, "2"),
    ],
)
def test_without_a_phase_results_are_wrong(
    monkeypatch: pytest.MonkeyPatch, count: int, phase: int, nodes: str
) -> None:
    monkeypatch.setenv("NCCLKV_RANKS_PER_NODE", nodes)
    late_headers(monkeypatch)
    leave_out(monkeypatch, phase)
    with pytest.raises(Exception, match=WRONG):
        testing.run_ranks(RANKS, together, mapped, count, timeout=TIMEOUT)


def test_copies_that_neighbours_still_read_are_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CollectiveSlot, "is_complete", lambda slot: True)
    late_headers(monkeypatch)
    with pytest.raises(Exception, match=WRONG):
        testing.run_ranks(RANKS, together, plain, SHORT, timeout=TIMEOUT)


def test_words_of_a_header_that_are_written_out_of_turn_are_wrong(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write, read = header.place_words, header.place

    def place_words(turn: int, place: Place | None) -> tuple[int, Sequence[int]]:
        return write(0, place)

    def place(turn: int, words: Sequence[int]) -> Place | None:
        return read(0, words)

    monkeypatch.setattr(header, "place_words", place_words)
    monkeypatch.setattr(header, "place", place)
    late_headers(monkeypatch)
    with pytest.raises(Exception, match=WRONG):
        testing.run_ranks(RANKS, together, mapped, LONG, timeout=TIMEOUT)


def test_copies_that_are_made_out_of_turn_are_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    make = ProgramCopies.make
    monkeypatch.setattr(ProgramCopies, "make", lambda copies, turn, array: make(copies, 0, array))
    late_headers(monkeypatch)
    with pytest.raises(Exception, match=WRONG):
        testing.run_ranks(RANKS, together, plain, SHORT, timeout=TIMEOUT)


def sent_bytes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list of the bytes of all messages of programs from now on."""
    sent: list[int] = []
    send = Channel.send

    def noted(channel: Channel, data: Buffer, peer: int) -> Any:
        sent.append(data.nbytes)
        return send(channel, data, peer)

    monkeypatch.setattr(Channel, "send", noted)
    return sent


@pytest.mark.parametrize(
    ("place", "count", "nodes", "messages"),
    [
        (mapped, LONG, "", 0),
        (plain, SHORT, "", 0),
        (plain, LONG, "", 12),
        (mixed, LONG, "", 6),
        (mapped, LONG, "2", 8),
        (plain, LONG, "2", 12),
    ],
)
def test_neighbours_send_messages_of_long_unmapped_arrays_alone(
    monkeypatch: pytest.MonkeyPatch, place: Memory, count: int, nodes: str, messages: int
) -> None:
    monkeypatch.setenv("NCCLKV_RANKS_PER_NODE", nodes)
    sent = sent_bytes(monkeypatch)

    def body() -> None:
        comm = threads.world(TIMEOUT)
        reads = ThreeReads(comm, place, count)
        reads.prepare(1)
        comm.control.barrier()
        sent.clear()
        comm.control.barrier()
        reads.program.launch().wait()
        reads.check(1)
        comm.control.barrier()
        assert sum(nbytes == 4 * count for nbytes in sent) == 3 * messages
        comm.control.barrier()
        comm.close()

    testing.run_ranks(RANKS, body, timeout=TIMEOUT)


def test_an_array_in_memory_of_the_node_is_read_in_place() -> None:
    def body() -> None:
        comm = threads.world(TIMEOUT)
        shared = comm.node_shared(4 * SHORT * comm.size)
        assert shared is not None
        whole = shared.view(np.float32)
        parts = [whole[SHORT * rank : SHORT * (rank + 1)] for rank in range(comm.size)]
        received = np.zeros(SHORT, np.float32)
        last = comm.size - 1

        def steps(wire: Wire, apply: Apply | None) -> Steps:
            own = parts[wire.rank]
            found = yield from wire.read(own, lambda reader, owner: (3, SHORT), in_place)
            assert all(one is other for one, other in zip(found, in_place, strict=True))
            found = yield from wire.read(own, lambda reader, owner: (1, SHORT), shifted)
            received[1:] = found[0]

        in_place = [part[3:] for part in parts]
        shifted: list[Buffer | None] = [None] * comm.size
        shifted[last] = np.zeros(SHORT - 1, np.float32)
        program = comm.program(steps, what="a test")
        for step in range(1, 5):
            parts[comm.rank][:] = step * 10 + comm.rank
            program.launch().wait()
            assert (received[1:] == step * 10).all()
            assert shifted[last] is not None
            assert (shifted[last] == step * 10 + last).all()
            for rank, part in enumerate(in_place):
                assert (part == step * 10 + rank).all()
            comm.barrier().wait()
        comm.close()

    testing.run_ranks(3, body, timeout=TIMEOUT)


def test_a_program_with_a_shared_result_ends_on_all_ranks_together() -> None:
    """Short arrays are copied, so nothing else holds a rank back."""

    def body() -> None:
        comm = threads.world(TIMEOUT)
        memory = comm.node_shared(4 * SHORT * comm.size)
        assert memory is not None
        whole = memory.view(np.float32)
        own = np.zeros(SHORT, np.float32)

        def steps(wire: Wire, apply: Apply | None) -> Steps:
            wire.share_result()
            parts = yield from wire.read(own, lambda reader, owner: (0, SHORT))
            pause()
            lo = SHORT * wire.rank
            whole[lo : lo + SHORT] = sum(part for part in parts if part is not None)

        program = comm.program(steps, what="a test")
        for step in range(1, STEPS):
            own[:] = step
            program.launch().wait()
            assert (whole == step * comm.size).all()
            comm.barrier().wait()
        comm.close()

    testing.run_ranks(RANKS, body, timeout=TIMEOUT)


def test_a_slot_is_free_before_a_program_uses_it() -> None:
    def body() -> None:
        comm = threads.world(TIMEOUT)
        own = np.zeros(1)

        def steps(wire: Wire, apply: Apply | None) -> Steps:
            parts = yield from wire.read(own, lambda reader, owner: (0, 1))
            assert [part[0] for part in parts if part is not None] == [*range(comm.size)]

        def none(wire: Wire, apply: Apply | None) -> Steps:
            yield from ()

        own[0] = comm.rank
        programs = [comm.program(each, what=f"a test {each.__name__}") for each in (steps, none)]
        works = [programs[number % 2].launch() for number in range(2 * RING + 10)]
        for work in reversed(works) if comm.rank else works:
            work.wait()
        comm.close()

    testing.run_ranks(2, body, timeout=TIMEOUT)


@pytest.mark.parametrize("reads", [0, 1, 2])
def test_arrivals_are_times_of_this_program(reads: int) -> None:
    def body() -> None:
        comm = threads.world(TIMEOUT)
        own = np.zeros(3)

        def steps(wire: Wire, apply: Apply | None) -> Steps:
            for _ in range(reads):
                yield from wire.read(own, lambda reader, owner: (0, 3))

        program = comm.program(steps, what="a test")
        for _ in range(3):
            begin = min(comm.control.allgather(concurrency.monotonic()))
            for _ in range(RING):
                work = program.launch()
                work.wait()
            comm.barrier().wait()
            arrivals = work.arrivals()
            assert sorted(arrivals) == [*range(comm.size)]
            assert all(begin <= each <= concurrency.monotonic() for each in arrivals.values())
            comm.barrier().wait()
        comm.close()

    testing.run_ranks(2, body, timeout=TIMEOUT)


def test_without_memory_for_copies_neighbours_send_messages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ProgramCopies, "make", lambda copies, turn, array: None)
    testing.run_ranks(RANKS, together, plain, SHORT, timeout=TIMEOUT)


def test_ranks_of_a_node_name_programs_that_differ() -> None:
    def body() -> str:
        comm = threads.world(TIMEOUT).duplicate()
        own = np.zeros(9, np.uint8)

        def steps(wire: Wire, apply: Apply | None) -> Steps:
            yield from wire.read(own, lambda reader, owner: (0, 9))

        what = f"a {comm.rank + 1}bit sum"
        with pytest.raises(Exception, match="different calls") as caught:
            comm.program(steps, what=what, nbytes=9).launch().wait()
        return str(caught.value)

    assert testing.run_ranks(2, body, timeout=TIMEOUT) == [
        f"rank {rank}: rank {1 - rank} called a {2 - rank}bit sum of 9 bytes where this rank "
        f"called a {rank + 1}bit sum of 9 bytes; the two ranks made different calls"
        for rank in range(2)
    ]
