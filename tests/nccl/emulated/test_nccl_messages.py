"""Sends and receives of the emulated NCCL."""

from __future__ import annotations

import ctypes
import time

import numpy as np
import pytest

from tests.nccl.emulated.collectives import (
    Array,
    Result,
    call,
    check,
    create,
    group,
    last_error,
)
from tests.nccl.emulated.sums import SOON, floats, ones, summed
from tests.nccl.emulated.worlds import World, run


def all_to_all(world: World, count: int) -> None:
    """Send each rank, this one too, its numbers twice, in an order that no pair shares."""
    comm = create(world)
    size, rank = comm.size, comm.rank
    source = Array(np.arange(2 * size * count, dtype=np.int32) + 1000 * rank)
    to = Array(np.zeros(2 * size * count, np.int32))
    with group():
        for turn in range(size):
            peer = (rank + turn) % size
            for part in (2 * peer, 2 * peer + 1):
                check(comm.send(source.at(part * count), count, np.int32, peer))
        for peer in range(size):
            for part in (2 * peer, 2 * peer + 1):
                check(comm.receive(to.at(part * count), count, np.int32, peer))
    comm.synchronize()
    own = np.arange(2 * rank * count, (2 * rank + 2) * count)
    assert np.array_equal(to.get(), np.concatenate([own + 1000 * peer for peer in range(size)]))
    check(comm.destroy())


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("count", [0, 1, 16_384, 50_001, 400_001])
def test_messages_of_a_group_go_together(size: int, count: int) -> None:
    run(all_to_all, size, count)


def empty_message(world: World) -> None:
    comm = create(world)
    array = ones()
    function = comm.send if world.rank else comm.receive
    check(function(array.pointer, 4, np.float32, 1 - world.rank))
    comm.synchronize()
    if world.rank:
        world.hear("looked")
    check(function(array.pointer, 0, np.float32, 1 - world.rank))
    if not world.rank:
        time.sleep(SOON)
        assert not comm.is_done()
        world.say("looked")
    comm.synchronize()
    check(comm.destroy())


def test_an_empty_message_is_waited_for() -> None:
    run(empty_message, 2)


def messages_in_turn(world: World) -> None:
    """Send from rank 0 through all others, each call alone."""
    comm = create(world)
    array = floats(1000, 5 if comm.rank == 0 else 0)
    if comm.rank > 0:
        check(comm.receive(array.pointer, 1000, np.float32, comm.rank - 1))
    if comm.rank < comm.size - 1:
        check(comm.send(array.pointer, 1000, np.float32, comm.rank + 1))
    comm.synchronize()
    assert list(array.get()) == [5.0] * 1000
    check(comm.destroy())


def test_messages_outside_of_groups() -> None:
    run(messages_in_turn, 4)


def parts_of_all(world: World) -> None:
    comm = create(world)
    size, rank, count = comm.size, comm.rank, 3000
    source = Array(np.arange(size * count, dtype=np.float32) + rank)
    to = Array(np.zeros(size * count, np.float32))
    kind, stream = ctypes.c_int(7), comm.stream
    arguments = (source.pointer, to.pointer, count, kind)
    check(call("ncclAlltoAll", *arguments, comm.handle, stream))
    comm.synchronize()
    own = np.arange(rank * count, (rank + 1) * count)
    assert np.array_equal(to.get(), np.concatenate([own + peer for peer in range(size)]))
    root = ctypes.c_int(size - 1)
    check(call("ncclGather", *arguments, root, comm.handle, stream))
    comm.synchronize()
    if rank == size - 1:
        first = np.arange(count)
        assert np.array_equal(to.get(), np.concatenate([first + peer for peer in range(size)]))
    check(call("ncclScatter", *arguments, root, comm.handle, stream))
    comm.synchronize()
    assert np.array_equal(to.get()[:count], own + size - 1)
    check(comm.destroy())


@pytest.mark.parametrize("size", [1, 3])
def test_all_to_all_gather_and_scatter(size: int) -> None:
    run(parts_of_all, size)


def messages_to_itself(world: World) -> None:
    comm = create(world)
    array = floats(4, 1)
    for name, function in (("send", comm.send), ("recv", comm.receive)):
        other = {"send": "recv", "recv": "send"}[name]
        assert function(array.pointer, 4, np.float32, world.rank) == Result.INVALID_USAGE
        assert last_error() == f"Trying to {name} to self without a matching {other}"
    check(comm.abort())


def test_a_message_to_itself_needs_both_ends() -> None:
    run(messages_to_itself, 2)


def messages_and_collectives(world: World) -> None:
    comm = create(world)
    summand, message, answer = floats(50, 1), floats(50, world.rank), floats(50, 9)
    with group():
        check(comm.send(message.pointer, 50, np.float32, 1 - world.rank))
        check(summed(comm, summand))
        check(comm.receive(answer.pointer, 50, np.float32, 1 - world.rank))
    comm.synchronize()
    assert list(summand.get()) == [2.0] * 50
    assert list(answer.get()) == [1 - world.rank] * 50
    check(comm.destroy())


def test_messages_and_collectives_in_one_group() -> None:
    run(messages_and_collectives, 2)
