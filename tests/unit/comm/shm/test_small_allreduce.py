"""Short sums in C, by two ranks of one process: their results and their slots afterwards."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ncclkv.comm.shm.node import Node
from ncclkv.comm.shm.segment import MemfdSegment
from ncclkv.comm.shm.sequence import DONE, ENTERED, RING, CollectiveSlot
from ncclkv.comm.shm.small_allreduce import SmallAllReduce, SmallAllReduceWork
from ncclkv.kernels.host import compiled
from tests.optimizers.cases import dtype_of

pytestmark = pytest.mark.usefixtures("in_c")

F32 = np.dtype(np.float32)
COUNT = 5
NOT_BEGUN, BEGUN = 0, 1


class LocalRank:
    """A rank, and its part in sums."""

    def __init__(self, rank: int, segments: list[MemfdSegment]) -> None:
        self.rank = rank
        self.node = Node([0, 1], rank, [[0, 1]], segments, lambda: None)
        self.small = self.kind()
        self.send = np.arange(COUNT, dtype=F32) * 10**rank
        self.receive = np.full(COUNT, -1, F32)

    def kind(self, op: str = "sum") -> SmallAllReduce:
        """Return the description of a sum."""
        return SmallAllReduce(self.node, COUNT, F32, op, None)

    def next(self) -> tuple[CollectiveSlot, int, CollectiveSlot | None]:
        """Return the next slot, its offset for a copy, and the slot before."""
        slot = self.node.sequence.next_slot()
        return (slot, *self.small.ring.take(slot))

    def attend(self, slot: CollectiveSlot, position: int, previous: CollectiveSlot | None) -> int:
        """Take part in a sum, and poll the other rank only once."""
        assert self.small.tables is not None
        words = (*words_of(slot, previous), *self.small.packed, 0)
        return compiled.short_sum(
            self.small.tables[position], self.rank, *words, self.send, self.receive, False
        )


def words_of(slot: CollectiveSlot, previous: CollectiveSlot | None) -> tuple[int, int, int]:
    """Return the indices of two collectives and the digest, as `short_sum` takes them."""
    return slot.index, 0 if previous is None else previous.index, slot.digest


@pytest.fixture
def local_ranks() -> tuple[LocalRank, LocalRank]:
    """Return two ranks."""
    segments = [MemfdSegment.create()[0] for _ in range(2)]
    return LocalRank(0, segments), LocalRank(1, segments)


def test_the_first_rank_waits_and_the_second_has_the_sum(
    local_ranks: tuple[LocalRank, LocalRank],
) -> None:
    first, second = local_ranks
    here = first.next()
    assert first.attend(*here) == BEGUN
    assert (first.receive == -1).all()
    assert not here[0].all_reached(ENTERED)
    assert second.attend(*second.next()) == compiled.COMPLETE
    assert (second.receive == first.send + second.send).all()
    assert here[0].all_reached(ENTERED)
    assert here[0].all_reached(DONE)
    assert here[0].headers_match(first.small.headers)


@pytest.mark.parametrize("op", ["sum", "avg"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_sums_of_16_bits_are_made_in_float32(
    local_ranks: tuple[LocalRank, LocalRank], dtype: str, op: str
) -> None:
    real = dtype_of(dtype)
    works, outs = [], []
    for local_rank, value in zip(local_ranks, (2048, 3), strict=True):
        small = SmallAllReduce(local_rank.node, COUNT, real, op, None)
        assert small.tables is not None
        outs.append(np.zeros(COUNT, real))
        work = SmallAllReduceWork(small, np.full(COUNT, value, real), outs[-1], None)
        work.progress = SimpleNamespace(spin_limit=0)  # type: ignore[assignment]
        works.append(work)
    assert not works[0].advance()
    assert all(work.advance() for work in reversed(works))
    expected = real.type(np.float32(2051) / (2 if op == "avg" else 1))
    assert all((out == expected).all() for out in outs), outs


def test_the_first_rank_continues_without_a_second_copy(
    local_ranks: tuple[LocalRank, LocalRank],
) -> None:
    first, second = local_ranks
    here = first.next()
    assert first.attend(*here) == BEGUN
    assert first.attend(*here) == BEGUN, "the second has not entered"
    sent = first.send.copy()
    first.send[:] = 0
    assert second.attend(*second.next()) == compiled.COMPLETE
    assert first.attend(*here) == compiled.COMPLETE
    assert (first.receive == sent + second.send).all()
    assert here[0].is_complete()


def test_times_of_arrival_written_in_c_are_read_in_python(
    local_ranks: tuple[LocalRank, LocalRank],
) -> None:
    first, second = local_ranks
    times = [time.monotonic()]
    taken = []
    for local_rank in (second, first):
        taken.append(local_rank.next())
        local_rank.attend(*taken[-1])
        times.append(time.monotonic())
    for slot, _, _ in taken:
        arrivals = slot.arrivals()
        assert list(arrivals) == [0, 1]
        assert times[0] <= arrivals[1] <= times[1] <= arrivals[0] <= times[2]


def test_c_writes_the_time_that_is_set(
    local_ranks: tuple[LocalRank, LocalRank], clock_set_in_c: Callable[[int | None], None]
) -> None:
    slots = []
    for seconds, local_rank in enumerate(local_ranks, 1):
        clock_set_in_c(seconds * 10**9)
        taken = local_rank.next()
        local_rank.attend(*taken)
        slots.append(taken[0])
    assert [slot.arrivals() for slot in slots] == [{0: 1.0, 1: 2.0}] * 2


def test_an_old_header_is_not_taken_for_a_phase(local_ranks: tuple[LocalRank, LocalRank]) -> None:
    first, second = local_ranks
    second.node.sequence.next_slot().write_header(second.small.packed)
    assert first.attend(*first.next()) == BEGUN
    assert (first.receive == -1).all()


def test_another_call_is_not_summed(local_ranks: tuple[LocalRank, LocalRank]) -> None:
    first, second = local_ranks
    second.small = second.kind("avg")
    here = first.next()
    assert first.attend(*here) == BEGUN
    assert second.attend(*second.next()) == BEGUN
    assert (second.receive == -1).all()
    assert here[0].all_reached(ENTERED)
    assert not here[0].all_reached(DONE)
    assert not here[0].headers_match(first.small.headers)


def test_no_slot_is_overwritten_while_another_rank_may_read(
    local_ranks: tuple[LocalRank, LocalRank],
) -> None:
    first, second = local_ranks
    held = first.next()
    assert first.attend(*held) == BEGUN
    for _ in range(len(first.small.ring) - 1):
        first.next()
    later = first.next()
    assert later[1:] == (held[1], held[0])
    first.send += 100
    assert first.attend(*later) == NOT_BEGUN
    assert second.attend(*second.next()) == compiled.COMPLETE
    assert (second.receive == first.send - 100 + second.send).all()
    assert first.attend(*later) == NOT_BEGUN, "this rank itself has not read it"
    held[0].publish(DONE)
    assert first.attend(*later) == BEGUN


def test_a_slot_in_use_is_waited_for(local_ranks: tuple[LocalRank, LocalRank]) -> None:
    first, second = local_ranks
    theirs, own = (each.node.sequence.next_slot() for each in (second, first))
    for _ in range(RING - 1):
        first.node.sequence.next_slot()
    slot, position, previous = first.next()
    assert not slot.is_free()
    assert first.attend(slot, position, previous) == NOT_BEGUN
    theirs.publish(DONE)
    assert not slot.is_free(), "this rank itself has not read it"
    assert first.attend(slot, position, previous) == NOT_BEGUN
    own.publish(DONE)
    assert slot.is_free()
    assert first.attend(slot, position, previous) == BEGUN


WRONG: dict[str, tuple[Callable[[list[Any]], object], type[Exception], str]] = {
    "an argument less": (lambda args: args.pop(), TypeError, "takes 11 arguments"),
    "a rank too far": (lambda args: args.__setitem__(1, 2), ValueError, "rank 2 of 2"),
    "a rank below 0": (lambda args: args.__setitem__(1, -1), ValueError, "rank -1"),
    "too many ranks": (
        lambda args: args.__setitem__(0, args[0] * compiled.MAX_RANKS), ValueError, "64 are the",
    ),
    "a word": (lambda args: args.__setitem__(3, "x"), TypeError, "integer"),
    "another dtype": (
        lambda args: args.__setitem__(8, args[8].astype("f8")), TypeError, "not both flat",
    ),
    "another length": (lambda args: args.__setitem__(9, args[9][1:]), ValueError, "expected"),
    "strides": (
        lambda args: args.__setitem__(8, np.zeros(2 * COUNT, F32)[::2]), TypeError, "flat",
    ),
    "one that is read-only": (
        lambda args: args[9].setflags(write=False), ValueError, "not writable|read-only",
    ),
}  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_calls_raise_and_publish_nothing(
    local_ranks: tuple[LocalRank, LocalRank], wrong: str
) -> None:
    first, second = local_ranks
    spoil, error, words = WRONG[wrong]
    slot, position, previous = first.next()
    assert first.small.tables is not None
    args: list[Any] = [
        first.small.tables[position],
        0,
        *words_of(slot, previous),
        *first.small.packed,
    ]
    args += [0, first.send, first.receive, False]
    spoil(args)
    with pytest.raises(error, match=words):
        compiled.short_sum(*args)
    assert not second.node.sequence.next_slot().all_reached(ENTERED)
