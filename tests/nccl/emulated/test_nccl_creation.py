"""Creation and splits of communicators of the emulated NCCL."""

from __future__ import annotations

import ctypes
import time

import numpy as np
import pytest

from tests.nccl.emulated.calls import ok
from tests.nccl.emulated.collectives import (
    Array,
    Comm,
    Result,
    UniqueId,
    begin,
    call,
    check,
    config,
    create,
    last_error,
    unique_id,
)
from tests.nccl.emulated.sums import SOON, Started, ones, split, summed
from tests.nccl.emulated.worlds import World, run

# Creation


def properties(world: World) -> tuple[int, int, int]:
    comm = create(world)
    names = ("ncclCommCount", "ncclCommUserRank", "ncclCommCuDevice")
    found = tuple(comm.number(name) for name in names)
    check(comm.destroy())
    return found


def test_a_communicator_knows_its_ranks_and_its_device() -> None:
    assert [rank.result for rank in run(properties, 4)] == [(4, n, n) for n in range(4)]


def all_or_none(world: World) -> float:
    """Create a communicator, late on the last rank; return the seconds."""
    id = world.tell(unique_id() if world.rank == 0 else None)[0]
    if world.rank == world.size - 1:
        time.sleep(SOON)
    begun = time.monotonic()
    comm = create(world, id)
    seconds = time.monotonic() - begun
    check(comm.destroy())
    return seconds


def test_creation_waits_for_all_ranks() -> None:
    *first, last = run(all_or_none, 3)
    assert all(rank.result > max(SOON / 2, last.result) for rank in first)


def wrong_ranks(world: World, kind: str) -> None:
    """Create with wrong ranks: they hang, as in NCCL, until they are aborted."""
    id = world.tell(unique_id() if world.rank == 0 else None)[0]
    ok("cudaSetDevice", ctypes.c_int(world.rank))
    rank, size = {"same": (0, 2), "other size": (world.rank, 2 + world.rank)}[kind]
    if world.rank:
        time.sleep(SOON)
    result, handle = begin(id, rank, size, config(blocking=0))
    assert result == Result.IN_PROGRESS
    comm = Comm(handle, rank, size)
    world.tell()  # both ranks have arrived
    time.sleep(SOON)
    # A rank that arrives after the root's abort finds no peer.
    assert comm.state() in (Result.IN_PROGRESS, Result.REMOTE_ERROR)
    assert world.rank or comm.state() == Result.IN_PROGRESS
    check(comm.abort())


@pytest.mark.parametrize("kind", ["same", "other size"])
def test_ranks_that_do_not_fit_hang_until_abort(kind: str) -> None:
    first, _ = run(wrong_ranks, 2, kind, NCCL_DEBUG="WARN")
    words = {
        "same": "Bootstrap Root : rank 0 of 2 ranks has already checked in",
        "other size": "Bootstrap Root : mismatch in info from procs, nranks 2 vs 3",
    }
    assert f"emulated NCCL WARN {words[kind]}" in first.out


def without_blocking(world: World) -> None:
    """Create, sum, split, finalize and destroy without blocking."""
    comm = create(world, blocking=0)
    assert comm.settled() == Result.SUCCESS
    array = ones()
    assert summed(comm, array) in (Result.IN_PROGRESS, Result.SUCCESS)
    assert comm.settled() == Result.SUCCESS
    comm.synchronize()
    assert list(array.get()) == [2.0] * 4
    handle = ctypes.c_void_p()
    arguments = (ctypes.c_int(0), ctypes.c_int(-world.rank), ctypes.byref(handle), None)
    assert call("ncclCommSplit", comm.handle, *arguments) == Result.SUCCESS
    assert comm.settled() == Result.SUCCESS
    other = Comm(handle.value or 0, 1 - world.rank, 2)
    assert other.number("ncclCommUserRank") == 1 - world.rank
    # The group does not block either: blocking and non-blocking calls cannot be mixed in one group.
    check(call("ncclGroupStart"))
    for each in (comm, other):
        check(summed(each, array))
    assert call("ncclGroupEnd") == Result.IN_PROGRESS
    for each in (comm, other):
        assert each.settled() == Result.SUCCESS
    for each in (other, comm):
        assert each.finalize() in (Result.IN_PROGRESS, Result.SUCCESS)
        assert each.settled() == Result.SUCCESS
        check(each.destroy())


def test_a_life_without_blocking() -> None:
    run(without_blocking, 2)


def busy(world: World) -> None:
    """Use a communicator during its creation, which waits for a missing rank."""
    result, handle = begin(unique_id(), 0, 2, config(blocking=0))
    assert result == Result.IN_PROGRESS
    comm = Comm(handle, 0, 2)
    assert comm.state() == Result.IN_PROGRESS
    words = "Attempt to use communicator before the previous operation returned ncclSuccess"
    value = ctypes.c_int()
    assert call("ncclCommCount", handle, ctypes.byref(value)) == Result.INVALID_ARGUMENT
    assert last_error() == words
    assert comm.destroy() == Result.INVALID_ARGUMENT
    assert comm.finalize() == Result.INVALID_ARGUMENT
    check(comm.abort())


def test_a_communicator_in_the_making_can_only_be_aborted() -> None:
    run(busy, 1)


def stopped_creation(world: World) -> None:
    """Abort a blocking creation from another thread."""
    handle = ctypes.c_void_p()
    id = UniqueId.from_buffer_copy(unique_id())
    arguments = (ctypes.byref(handle), ctypes.c_int(2), id, ctypes.c_int(0))
    creation = Started(lambda: call("ncclCommInitRank", *arguments))
    assert creation.hangs()
    check(call("ncclCommAbort", handle.value))
    assert creation.returned() == Result.INTERNAL_ERROR


def test_a_creation_that_blocks_ends_with_an_abort() -> None:
    run(stopped_creation, 1)


def scalable(world: World) -> None:
    """Create with several ids."""
    ids = b"".join(world.tell(unique_id()))
    ok("cudaSetDevice", ctypes.c_int(world.rank))
    many = (UniqueId * world.size).from_buffer_copy(ids)
    handle = ctypes.c_void_p()
    numbers = [ctypes.c_int(n) for n in (world.size, world.rank, world.size)]
    check(call("ncclCommInitRankScalable", ctypes.byref(handle), *numbers, many, None))
    comm = Comm(handle.value or 0, world.rank, world.size)
    array = ones()
    check(summed(comm, array))
    comm.synchronize()
    assert list(array.get()) == [3.0] * 4
    check(comm.destroy())


def test_creation_by_several_ids() -> None:
    run(scalable, 3)


# Splits


def splits(world: World) -> tuple[tuple[int, int] | None, ...]:
    """Split by color and key, with equal keys, and without a color; return rank and sum."""
    comm = create(world)
    rank = world.rank
    found: list[tuple[int, int] | None] = []
    for color, key in ((rank % 2, -rank), (7, 5), (-1 if rank == 1 else 3, rank)):
        handle = split(comm, color, key)
        if not handle:
            found.append(None)
            continue
        part = Comm(handle, rank, world.size)
        array = Array(np.full(4, rank, np.int32))
        check(summed(part, array))
        part.synchronize()
        found.append((part.number("ncclCommUserRank"), int(array.get()[0])))
        check(part.destroy())
    check(comm.destroy())
    return tuple(found)


def test_splits() -> None:
    assert [rank.result for rank in run(splits, 4)] == [
        ((1, 2), (0, 6), (0, 5)),
        ((1, 4), (1, 6), None),
        ((0, 2), (2, 6), (1, 5)),
        ((0, 4), (3, 6), (2, 5)),
    ]
