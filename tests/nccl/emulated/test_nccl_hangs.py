"""Ranks of the emulated NCCL whose calls differ, and hosts that wait for each other."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable

import numpy as np
import pytest

from tests.nccl.emulated.collectives import (
    Array,
    Result,
    call,
    check,
    create,
)
from tests.nccl.emulated.sums import SOON, Started, ones, summed
from tests.nccl.emulated.worlds import World, run

# Differences


def calls_of_hosts(world: World) -> None:
    """Split on one rank and make the first sum on the other: both hang."""
    comm = create(world)
    array = ones()
    handle = ctypes.c_void_p()
    numbers = (ctypes.c_int(0), ctypes.c_int(0))
    own = Started(
        lambda: (
            summed(comm, array)
            if world.rank
            else call("ncclCommSplit", comm.handle, *numbers, ctypes.byref(handle), None)
        )
    )
    assert own.hangs()
    world.tell()
    check(comm.abort())
    assert own.returned() == Result.INTERNAL_ERROR


def test_hosts_that_differ_hang_until_abort() -> None:
    run(calls_of_hosts, 2)


def different(world: World, kind: str) -> None:
    """Make a call that differs from the other rank's; it hangs until an abort."""
    comm = create(world)
    array = Array(np.ones(64, np.float32))
    here, first = array.pointer, world.rank == 0
    calls: dict[str, Callable[[], Result]] = {
        "count": lambda: comm.all_reduce(here, here, 4 + world.rank, np.float32),
        "dtype": lambda: comm.all_reduce(here, here, 4, np.float32 if first else np.int32),
        "op": lambda: comm.all_reduce(here, here, 4, np.float32, "sum" if first else "max"),
        "root": lambda: comm.broadcast(here, here, 4, np.float32, world.rank),
        "kind": lambda: (
            comm.broadcast(here, here, 4, np.float32)
            if first
            else comm.reduce(here, here, 4, np.float32)
        ),
        "presence": lambda: summed(comm, array) if first else Result.SUCCESS,
        "message": lambda: (
            comm.send(here, 4, np.float32, 1) if first else comm.receive(here, 5, np.float32, 0)
        ),
    }
    check(calls[kind]())
    if kind == "presence" and not first:
        world.tell()
        check(comm.abort())
        return
    time.sleep(SOON)
    # A short message leaves when it is sent.
    assert not comm.is_done() or (kind == "message" and first)
    world.tell()
    check(comm.abort())
    comm.synchronize()


@pytest.mark.parametrize("kind", ["count", "dtype", "op", "root", "kind", "presence", "message"])
def test_ranks_that_differ_hang_until_abort(kind: str) -> None:
    variables = {"NCCL_RUNTIME_CONNECT": "0", "EMULATED_NCCL_EXPLAIN": "1"}
    words = "".join(rank.err for rank in run(different, 2, kind, **variables))
    if kind == "presence":
        assert not words
    elif kind == "message":
        assert "rank 1 receives 20 bytes from rank 0, which sends 16; they hang" in words
    else:
        assert words.startswith("emulated NCCL: rank 0 of 2 called ")
        assert words.endswith("they hang, as NCCL would\n")


def same_bytes(world: World) -> None:
    """Broadcast equal bytes with different types: NCCL compares bytes alone."""
    comm = create(world)
    array = ones()
    if world.rank:
        check(comm.broadcast(array.pointer, array.pointer, 16, np.int8))
    else:
        check(comm.broadcast(array.pointer, array.pointer, 4, np.float32))
    comm.synchronize()
    check(comm.destroy())


def test_copies_are_counted_in_bytes() -> None:
    run(same_bytes, 2)


def first_collective(world: World) -> None:
    """Make the first call on one rank alone: by default the host waits for the others."""
    comm = create(world)
    array = ones()
    if world.rank:
        world.tell()
        check(summed(comm, array))
    else:
        first = Started(lambda: summed(comm, array))
        assert first.hangs()
        world.tell()
        assert first.returned() == Result.SUCCESS
        check(summed(comm, array))
    if world.rank:
        check(summed(comm, array))
    comm.synchronize()
    check(comm.destroy())


def test_the_first_collective_connects_the_ranks() -> None:
    run(first_collective, 2)


def setting_of_the_creation(world: World) -> list[bool]:
    """Create with the setting and without it; return the first collectives that wait."""
    waits = []
    for value in ("0", "1", "0"):
        os.environ["NCCL_RUNTIME_CONNECT"] = value
        comm = create(world)
        os.environ["NCCL_RUNTIME_CONNECT"] = "1"
        array = ones()
        if world.rank:
            world.tell()
        first = Started(lambda comm=comm, array=array: summed(comm, array))
        if not world.rank:
            waits.append(first.hangs())
            world.tell()
        assert first.returned() == Result.SUCCESS
        comm.synchronize()
        check(comm.destroy())
    return waits


@pytest.mark.parametrize(
    ("variables", "waits"),
    [
        ({}, [False, False, False]),
        ({"NCCL_NO_CACHE": "X,NCCL_RUNTIME_CONNECT"}, [False, True, False]),
        ({"NCCL_NO_CACHE": "ALL", "EMULATED_NCCL_VERSION": "22809"}, [False, False, False]),
    ],
)
def test_a_variable_is_read_once_at_the_first_creation(
    variables: dict[str, str], waits: list[bool]
) -> None:
    assert run(setting_of_the_creation, 2, **variables)[0].result == waits


def first_messages(world: World) -> None:
    """Send to a rank that does not receive: the host waits until an abort, with any setting."""
    comm = create(world)
    array = ones()
    if world.rank == 0:
        first = Started(lambda: comm.send(array.pointer, 4, np.float32, 1))
        assert first.hangs()
        check(comm.abort())
        assert first.returned() == Result.INTERNAL_ERROR
    world.tell()
    if world.rank:
        check(comm.abort())


def test_the_first_message_connects_two_ranks() -> None:
    run(first_messages, 2, NCCL_RUNTIME_CONNECT="0")
