"""Short sums in C, by two ranks of one process: their results and their slots afterwards."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ncclkv.comm.shm.node import Node
from ncclkv.comm.shm.segment import MemfdSegment
from ncclkv.comm.shm.sequence import DONE, ENTERED, RING, CollectiveSlot
from ncclkv.comm.shm.small_allreduce import SmallAllReduce
from ncclkv.kernels.host import compiled

pytestmark = pytest.mark.usefixtures("in_c")

F32 = np.dtype(np.float32)
COUNT = 5
NOT_BEGUN, BEGUN = 0, 1


class Seat:
    """A rank, and its part in sums."""

    def __init__(self, rank: int, spaces: list[MemfdSegment]) -> None:
        self.rank = rank
        self.node = Node([0, 1], rank, [[0, 1]], spaces, lambda: None)
        self.short = self.kind()
        self.send = np.arange(COUNT, dtype=F32) * 10**rank
        self.receive = np.full(COUNT, -1, F32)

    def kind(self, op: str = "sum") -> SmallAllReduce:
        """Return the description of a sum."""
        return SmallAllReduce(self.node, COUNT, F32, op, None)

    def turn(self) -> tuple[CollectiveSlot, int, CollectiveSlot | None]:
        """Return the next slot, its offset for a copy, and the slot before."""
        turn = self.node.sequence.next_slot()
        return (turn, *self.short.ring.take(turn))

    def attend(self, turn: CollectiveSlot, slot: int, before: CollectiveSlot | None) -> int:
        """Take part in a sum, and poll the other rank only once."""
        assert self.short.tables is not None
        arguments = (*turn.meeting(before), *self.short.words, 0)
        return compiled.short_sum(
            self.short.tables[slot], self.rank, *arguments, self.send, self.receive, False
        )


@pytest.fixture
def seats() -> tuple[Seat, Seat]:
    """Return two ranks."""
    spaces = [MemfdSegment.create()[0] for _ in range(2)]
    return Seat(0, spaces), Seat(1, spaces)


def test_the_first_rank_waits_and_the_second_has_the_sum(seats: tuple[Seat, Seat]) -> None:
    first, second = seats
    here = first.turn()
    assert first.attend(*here) == BEGUN
    assert (first.receive == -1).all()
    assert not here[0].all_reached(ENTERED)
    assert second.attend(*second.turn()) == compiled.COMPLETE
    assert (second.receive == first.send + second.send).all()
    assert here[0].all_reached(ENTERED)
    assert here[0].all_reached(DONE)
    assert here[0].headers_match(first.short.headers)


def test_times_of_arrival_written_in_c_are_read_in_python(seats: tuple[Seat, Seat]) -> None:
    first, second = seats
    times = [time.monotonic()]
    turns = []
    for seat in (second, first):
        turns.append(seat.turn())
        seat.attend(*turns[-1])
        times.append(time.monotonic())
    for turn, _, _ in turns:
        arrivals = turn.arrivals()
        assert list(arrivals) == [0, 1]
        assert times[0] <= arrivals[1] <= times[1] <= arrivals[0] <= times[2]


def test_an_old_header_is_not_taken_for_a_phase(seats: tuple[Seat, Seat]) -> None:
    first, second = seats
    second.node.sequence.next_slot().write_header(second.short.words)
    assert first.attend(*first.turn()) == BEGUN
    assert (first.receive == -1).all()


def test_another_call_is_not_summed(seats: tuple[Seat, Seat]) -> None:
    first, second = seats
    second.short = second.kind("avg")
    here = first.turn()
    assert first.attend(*here) == BEGUN
    assert second.attend(*second.turn()) == BEGUN
    assert (second.receive == -1).all()
    assert here[0].all_reached(ENTERED)
    assert not here[0].all_reached(DONE)
    assert not here[0].headers_match(first.short.headers)


def test_no_slot_is_overwritten_while_another_rank_may_read(seats: tuple[Seat, Seat]) -> None:
    first, second = seats
    held = first.turn()
    assert first.attend(*held) == BEGUN
    for _ in range(len(first.short.ring) - 1):
        first.turn()
    later = first.turn()
    assert later[1:] == (held[1], held[0])
    first.send += 100
    assert first.attend(*later) == NOT_BEGUN
    assert second.attend(*second.turn()) == compiled.COMPLETE
    assert (second.receive == first.send - 100 + second.send).all()
    assert first.attend(*later) == NOT_BEGUN, "this rank itself has not read it"
    held[0].publish(DONE)
    assert first.attend(*later) == BEGUN


def test_a_slot_in_use_is_waited_for(seats: tuple[Seat, Seat]) -> None:
    first, second = seats
    theirs = second.node.sequence.next_slot()
    for _ in range(RING):
        first.node.sequence.next_slot()
    turn, slot, before = first.turn()
    assert first.attend(turn, slot, before) == NOT_BEGUN
    theirs.publish(DONE)
    assert first.attend(turn, slot, before) == BEGUN


WRONG: dict[str, tuple[Callable[[list[Any]], object], type[Exception], str]] = {
    "an argument less": (lambda args: args.pop(), TypeError, "takes 16 arguments"),
    "a rank too far": (lambda args: args.__setitem__(1, 2), ValueError, "rank 2 of 2"),
    "a rank below 0": (lambda args: args.__setitem__(1, -1), ValueError, "rank -1"),
    "too many ranks": (
        lambda args: args.__setitem__(0, args[0] * compiled.MOST_RANKS), ValueError, "64 are the",
    ),
    "a word": (lambda args: args.__setitem__(3, "x"), TypeError, "integer"),
    "another dtype": (
        lambda args: args.__setitem__(13, args[13].astype("f8")), TypeError, "not both flat",
    ),
    "another length": (lambda args: args.__setitem__(14, args[14][1:]), ValueError, "expected"),
    "strides": (
        lambda args: args.__setitem__(13, np.zeros(2 * COUNT, F32)[::2]), TypeError, "flat",
    ),
    "one that is read-only": (
        lambda args: args[14].setflags(write=False), ValueError, "not writable|read-only",
    ),
}  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_calls_raise_and_publish_nothing(seats: tuple[Seat, Seat], wrong: str) -> None:
    first, second = seats
    spoil, error, words = WRONG[wrong]
    turn, slot, before = first.turn()
    assert first.short.tables is not None
    args: list[Any] = [first.short.tables[slot], 0, *turn.meeting(before), *first.short.words]
    args += [0, first.send, first.receive, False]
    spoil(args)
    with pytest.raises(error, match=words):
        compiled.short_sum(*args)
    assert not second.node.sequence.next_slot().all_reached(ENTERED)
