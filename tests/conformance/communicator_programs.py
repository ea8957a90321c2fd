"""Cases of programs: reads of all kinds, and several programs in flight.

Cases as in `tests.conformance.communicator`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ncclkv.comm.base import Collective, Communicator
from ncclkv.comm.transport import Steps
from ncclkv.comm.two_step import slices
from ncclkv.comm.types import Apply
from ncclkv.comm.wire import Range, Wants, Wire
from tests.conformance.capabilities import current_buffers
from tests.conformance.communicator import (
    Array,
    case,
    data,
    expected,
    identical,
    summed,
)
from tests.conformance.communicator_memory import KINDS, STALE, Started, buffer, finish
from tests.conformance.communicator_parts import EVERY_DTYPE, F32, borders, ragged


def everything(counts: Sequence[int]) -> Wants:
    """Return the wish for all of every rank's array."""
    return lambda reader, owner: (0, counts[owner])


def shares(size: int, counts: Sequence[int]) -> Wants:
    """Return the wish of each rank for its own share of every rank's array."""
    return lambda reader, owner: slices(counts[owner], size)[reader]


def some_pairs(counts: Sequence[int]) -> Wants:
    """Return a wish in which pairs of ranks read all, the first half, nothing, or no element."""

    def wants(reader: int, owner: int) -> Range | None:
        count = counts[owner]
        middle = count // 2
        return ((0, count), (0, middle), None, (middle, middle))[(reader + 2 * owner) % 4]

    return wants


def room(parts: Sequence[Array | None]) -> list[Any]:
    """Return an array of stale numbers for each part."""
    return [
        None if part is None else current_buffers().put(data(9, part.size, part.dtype, STALE))
        for part in parts
    ]


def copies(wire: Wire, parts: Sequence[Any], into: Sequence[Any]) -> None:
    """Copy what a program has read; both have None at the same places."""
    assert len(parts) == len(into) == wire.size
    for part, place in zip(parts, into, strict=True):
        assert (part is None) == (place is None)
        if part is not None:
            assert (part.size, part.dtype) == (place.size, place.dtype)
            wire.copy(part, place)


def reading(
    comm: Communicator,
    counts: Sequence[int],
    wants: Wants,
    kind: str = "plain",
    placed: bool = False,
    step: int = 0,
    dtype: np.dtype[Any] = F32,
) -> Started:
    """Start a program of one read of this rank's data."""
    own = buffer(comm, data(comm.rank, counts[comm.rank], dtype, step), kind)
    ranges = [wants(comm.rank, owner) for owner in range(comm.size)]
    wanted = [
        None if each is None else data(owner, counts[owner], dtype, step)[slice(*each)]
        for owner, each in enumerate(ranges)
    ]
    received = room(wanted)

    def steps(wire: Wire, apply: Apply | None) -> Steps:
        parts = yield from wire.read(own, wants, received if placed else ())
        copies(wire, parts, received)

    def check() -> None:
        for owner, each in enumerate(wanted):
            if each is not None:
                what = f"rank {comm.rank}: {counts} {dtype}, {kind}, placed {placed}, of {owner}"
                identical(current_buffers().get(received[owner]), each, what)
        current_buffers().write(own, 0)

    nbytes = sum(counts) * dtype.itemsize
    program = comm.program(
        steps, what="a test", nbytes=nbytes, scratch=nbytes, kept=[own, *filled(received)]
    )
    return program.launch(), check


def filled(arrays: Sequence[Any]) -> Iterator[Any]:
    """Return those of the arrays that are not None."""
    return (array for array in arrays if array is not None)


@case
def programs_read_all_of_every_rank(comm: Communicator) -> None:
    for turn, count in enumerate(borders()):
        for number, placed in enumerate((False, True), turn):
            counts = [count] * comm.size
            finish(reading(comm, counts, everything(counts), KINDS[number % 3], placed))


@case
def programs_read_ragged_arrays(comm: Communicator) -> None:
    for turn, longest in enumerate(borders()):
        for number, counts in enumerate((ragged(comm.size, longest), [longest] * comm.size), turn):
            kind, placed = KINDS[number % 3], number % 2 == 0
            finish(reading(comm, counts, everything(counts), kind, placed))
            finish(reading(comm, counts, shares(comm.size, counts), KINDS[turn % 3], not placed))


@case
def programs_read_nothing_of_some_ranks(comm: Communicator) -> None:
    for turn, longest in enumerate(borders()):
        for placed in (False, True):
            counts = [longest] * comm.size
            finish(reading(comm, counts, some_pairs(counts), KINDS[turn % 3], placed))
    finish(reading(comm, [7] * comm.size, lambda reader, owner: None))


@case
def programs_read_every_dtype(comm: Communicator) -> None:
    for number, dtype in enumerate(EVERY_DTYPE):
        counts = ragged(comm.size, 1001)
        for wants in (everything(counts), shares(comm.size, counts)):
            finish(reading(comm, counts, wants, KINDS[number % 3], number % 2 == 0, dtype=dtype))


class Total:
    """A sum of every rank's data in two reads, and a third read of memory that was written anew.

    Parameters
    ----------
    comm : Communicator
    count : int
    kind : str
        As for `buffer`.
    """

    def __init__(self, comm: Communicator, count: int, kind: str, step: int = 0) -> None:
        self._comm, self._step = comm, step
        self._cuts = slices(count, comm.size)
        lo, hi = self._cuts[comm.rank]
        stale = data(9, count, F32, STALE)
        self._send = buffer(comm, data(comm.rank, count, F32, step), kind)
        self._again = current_buffers().put(data(comm.rank, count, F32, step + 1))
        self._share = buffer(comm, stale[lo:hi], kind)
        self._total, self._last = (current_buffers().put(stale) for _ in range(2))
        self._applied = np.zeros(count, int)

    def steps(self, wire: Wire, apply: Apply | None) -> Steps:
        cuts = self._cuts
        parts = yield from wire.read(self._send, lambda reader, owner: cuts[reader])
        if self._share.size:
            wire.fold(parts, self._share, "sum")
        lengths = [hi - lo for lo, hi in cuts]
        yield from wire.read(self._share, everything(lengths), self.parts(self._total))
        wire.copy(self._again, self._send)
        last = yield from wire.read(self._send, lambda reader, owner: cuts[owner])
        copies(wire, last, self.parts(self._last))
        for lo, hi in cuts:
            if apply is not None and lo < hi:
                apply(lo, hi)

    def parts(self, array: Any) -> list[Any]:
        """Return the share of each rank."""
        return [array[lo:hi] for lo, hi in self._cuts]

    def apply(self, lo: int, hi: int) -> None:
        self._applied[lo:hi] += 1

    def program(self) -> Collective:
        kept = [self._send, self._again, self._share, self._total, self._last]
        nbytes = self._send.nbytes
        return self._comm.program(
            self.steps, what="a total", nbytes=nbytes, scratch=nbytes * self._comm.size, kept=kept
        )

    def check(self) -> None:
        comm, count, place = self._comm, self._send.size, current_buffers()
        what = f"rank {comm.rank}: a total of {count}"
        summed(comm, place.get(self._total), expected(comm, count, F32, "sum", self._step), what)
        whole = [data(rank, count, F32, self._step + 1) for rank in range(comm.size)]
        wanted = [each[lo:hi] for each, (lo, hi) in zip(whole, self._cuts, strict=True)]
        identical(place.get(self._last), np.concatenate(wanted), f"{what}, read last")
        assert (self._applied == 1).all(), f"{what}: applied {self._applied}"
        for each in (self._send, self._share):
            place.write(each, 0)

    def start(self) -> Started:
        return self.program().launch(self.apply), self.check


@case
def programs_make_several_reads(comm: Communicator) -> None:
    for turn, count in enumerate(borders()):
        for step in range(2):
            finish(Total(comm, count, KINDS[(turn + step) % 3], step).start())


@case
def programs_are_waited_for_in_any_order(comm: Communicator) -> None:
    for step in range(3):
        flying: list[Started] = []
        for number, count in enumerate((5, 0, 3000, 70_000)):
            kind, counts = KINDS[(step + number) % 3], ragged(comm.size, count)
            flying.append(Total(comm, count, kind, step).start())
            sent = current_buffers().put(data(comm.rank, count, F32, step))
            flying.append((comm.allreduce(sent, sent), nothing))
            flying.append(reading(comm, counts, everything(counts), kind, step=step))
        for index in np.random.default_rng([step, comm.rank]).permutation(len(flying)):
            finish(flying[index])


@case
def many_programs_are_in_flight(comm: Communicator) -> None:
    for turn in range(6):
        rng = np.random.default_rng(turn)
        flying: list[Started] = []
        for number in range(12):
            count, kind = int(rng.integers(1, 60_000)), KINDS[int(rng.integers(3))]
            flying.append(Total(comm, count, kind, turn).start())
            if number % 4 == 1:
                sent = current_buffers().put(data(comm.rank, 5, F32, turn))
                flying.append((comm.allreduce(sent, sent), nothing))
        for index in np.random.default_rng([turn, comm.rank]).permutation(len(flying)):
            finish(flying[index])


def nothing() -> None:
    """Check nothing."""


@case
def a_program_is_launched_again(comm: Communicator) -> None:
    own = current_buffers().put(np.zeros(100, F32))
    received = [current_buffers().put(np.zeros(100, F32)) for _ in range(comm.size)]

    def steps(wire: Wire, apply: Apply | None) -> Steps:
        yield from wire.read(own, lambda reader, owner: (0, 100), received)

    program = comm.program(steps, what="a test", kept=[own, *received], sent=lambda: 1234)
    assert program.wire_bytes == 1234
    program.label = "key 'w'"
    for step in range(4):
        current_buffers().write(own, data(comm.rank, 100, F32, step))
        work = program.launch()
        assert work.label == "key 'w'"
        work.wait()
        for rank, each in enumerate(received):
            identical(current_buffers().get(each), data(rank, 100, F32, step), f"step {step}")


@case
def programs_send_messages_too(comm: Communicator) -> None:
    size, rank = comm.size, comm.rank
    own = current_buffers().put(data(rank, 300, F32))
    received = current_buffers().put(np.zeros(300, F32))

    def steps(wire: Wire, apply: Apply | None) -> Steps:
        if size == 1:
            wire.copy(own, received)
            return
        with wire.group():
            pending = [
                wire.receive(received, (rank - 1) % size),
                wire.send(own, (rank + 1) % size),
            ]
        yield pending

    comm.program(steps, what="a ring", nbytes=1200, kept=[own, received]).launch().wait()
    wanted = data((rank - 1) % size, 300, F32)
    identical(current_buffers().get(received), wanted, f"rank {rank}: of the rank before")


@case
def wires_of_a_program_name_ranks_and_nodes(comm: Communicator) -> None:
    seen: list[Callable[[], None]] = []

    def steps(wire: Wire, apply: Apply | None) -> Steps:
        assert (wire.rank, wire.size) == (comm.rank, comm.size)
        assert sorted([*wire.peers, wire.rank]) == [*range(comm.size)]
        if wire.nodes is not None:
            assert sorted(rank for ranks in wire.nodes for rank in ranks) == [*range(comm.size)]
        seen.append(nothing)
        yield from ()

    comm.program(steps, what="a look").launch().wait()
    assert len(seen) == 1
