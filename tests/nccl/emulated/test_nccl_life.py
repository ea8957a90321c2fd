"""The life of communicators of the emulated NCCL: creation, split, ends, hangs and dead peers."""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.nccl.emulated import control
from tests.nccl.emulated.calls import Gate, made, made_last, ok
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
    eventually,
    last_error,
    unique_id,
)
from tests.nccl.emulated.worlds import World, run, running

SOON = 0.15
"""Seconds in which what nothing holds would have ended."""


def ones() -> Array:
    return Array(np.ones(4, np.float32))


def summed(comm: Comm, array: Array) -> Result:
    return comm.all_reduce(array.pointer, array.pointer, array.size, array.dtype)


class Started:
    """A call in a thread of its own.

    Attributes
    ----------
    result : object
        None while it runs.
    """

    def __init__(self, function: Callable[[], Any]) -> None:
        self.result: Any = None
        self._thread = threading.Thread(target=self._run, args=(function,), daemon=True)
        self._thread.start()

    def _run(self, function: Callable[[], Any]) -> None:
        self.result = function()

    def hangs(self) -> bool:
        """Tell whether it has not returned after a moment."""
        self._thread.join(SOON)
        return self._thread.is_alive()

    def returned(self) -> Any:
        """Wait for its result."""
        self._thread.join(10)
        assert not self._thread.is_alive()
        return self.result


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
    """Create, the last rank later; return how long it took."""
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
    """Create with ranks that do not fit: they hang, as in NCCL, until they are aborted."""
    id = world.tell(unique_id() if world.rank == 0 else None)[0]
    ok("cudaSetDevice", ctypes.c_int(world.rank))
    rank, size = {"same": (0, 2), "other size": (world.rank, 2 + world.rank)}[kind]
    if world.rank:
        time.sleep(SOON)
    result, handle = begin(id, rank, size, config(blocking=0))
    assert result == Result.IN_PROGRESS
    comm = Comm(handle, rank, size)
    world.tell(None)  # both have come
    time.sleep(SOON)
    # Who comes after the root has given up finds nobody.
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
    for each in (other, comm):
        assert each.finalize() in (Result.IN_PROGRESS, Result.SUCCESS)
        assert each.settled() == Result.SUCCESS
        check(each.destroy())


def test_a_life_without_blocking() -> None:
    run(without_blocking, 2)


def busy(world: World) -> None:
    """Use a communicator that is still in the making; a missing rank keeps it there."""
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
    """Abort a creation that blocks, from another thread."""
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
    """Create by several ids."""
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


def split(comm: Comm, color: int, key: int) -> int:
    handle = ctypes.c_void_p(1)
    numbers = (ctypes.c_int(color), ctypes.c_int(key))
    check(call("ncclCommSplit", comm.handle, *numbers, ctypes.byref(handle), None))
    return handle.value or 0


def splits(world: World) -> tuple[tuple[int, int] | None, ...]:
    """Split by color and key, with the same keys, and without a color; tell rank and sum."""
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


# Differences


def calls_of_hosts(world: World) -> None:
    """Split on one rank and make the first sum on the other: both wait for what never comes."""
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
    """Call what differs from the other rank's call; it hangs until abort."""
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
    # A short message is on its way when it is sent.
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
    """Broadcast the same bytes as other types: NCCL counts them in bytes."""
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
    """Make the first call of one rank alone: by default the host waits for the others."""
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
    """Create with the setting and without it; tell which first collectives wait for the others."""
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
    """Send to a rank that does not receive: the host waits, whatever is set, until abort."""
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


# Ends


def queued(world: World) -> None:
    """Abort while calls wait on streams behind other work, and in the middle of one."""
    comm = create(world)
    array, after = ones(), Array(np.zeros(4, np.float32))
    check(summed(comm, array))
    comm.synchronize()
    world.tell()
    if world.rank:
        check(comm.abort())
        return
    other = made("cudaStreamCreateWithFlags", 1)
    gate = Gate(other)
    check(summed(comm, array))
    check(comm.all_reduce(array.pointer, array.pointer, 4, np.float32, stream=other))
    aborted = Started(comm.abort)
    # As NCCL's, it waits until what it has put on streams has run.
    assert aborted.hangs()
    ok("cudaMemsetAsync", after.pointer, ctypes.c_int(0), 16, comm.stream)
    gate.open()
    assert aborted.returned() == Result.SUCCESS
    # The streams go on.
    for stream in (comm.stream, other):
        ok("cudaStreamSynchronize", stream)


def test_an_abort_ends_what_is_on_streams() -> None:
    run(queued, 2)


def ends(world: World, kind: str) -> None:
    """End a communicator whose peer has not ended it yet."""
    comm = create(world)
    array = ones()
    check(summed(comm, array))
    if world.rank:
        world.tell()
        time.sleep(SOON)
        check(comm.abort() if kind == "abort" else comm.destroy())
        return
    end = Started(comm.finalize if kind == "finalize" else comm.destroy)
    assert end.hangs()
    world.tell()
    assert end.returned() == Result.SUCCESS
    if kind == "finalize":
        assert comm.finalize() == Result.INVALID_ARGUMENT
        check(comm.destroy())


@pytest.mark.parametrize("kind", ["destroy", "abort", "finalize"])
def test_an_end_waits_for_the_ends_of_the_ranks_of_the_host(kind: str) -> None:
    run(ends, 2, kind)


def end_of_one(world: World) -> None:
    """Destroy on one rank alone, and abort it from another thread."""
    comm = create(world)
    if world.rank == 0:
        end = Started(comm.destroy)
        assert end.hangs()
        check(comm.abort())
        assert end.returned() == Result.SUCCESS
    world.tell()
    if world.rank:
        check(comm.abort())


def test_a_destroy_that_hangs_ends_with_an_abort() -> None:
    run(end_of_one, 2)


def ends_on_hosts(world: World) -> None:
    """Destroy on one rank alone where the other is on another host."""
    os.environ["NCCL_HOSTID"] = f"host {world.rank}"
    comm = create(world)
    if world.rank == 0:
        check(comm.destroy())
    world.tell()
    if world.rank:
        check(comm.destroy())


def test_an_end_waits_for_no_other_host() -> None:
    run(ends_on_hosts, 2)


def in_flight(world: World) -> None:
    """Destroy with work on the stream: it is done before."""
    comm = create(world)
    array = ones()
    gate = Gate(comm.stream)
    check(summed(comm, array))
    end = Started(comm.destroy)
    assert end.hangs()
    gate.open()
    assert end.returned() == Result.SUCCESS
    assert list(array.get()) == [2.0] * 4


def test_a_destroy_waits_for_what_is_in_flight() -> None:
    run(in_flight, 2)


def revoked(world: World) -> None:
    """Revoke a communicator in the middle of a call, split it, and destroy it."""
    comm = create(world)
    array = ones()
    check(summed(comm, array))
    comm.synchronize()
    world.tell()
    if world.rank == 0:
        check(summed(comm, array))
    assert call("ncclCommRevoke", comm.handle, ctypes.c_int(1)) == Result.INVALID_ARGUMENT
    check(call("ncclCommRevoke", comm.handle, ctypes.c_int(0)))
    comm.synchronize()
    assert call("ncclCommRevoke", comm.handle, ctypes.c_int(0)) == Result.INVALID_ARGUMENT
    assert summed(comm, array) == Result.INVALID_USAGE
    assert last_error() == "AllReduce: communicator was revoked"
    assert comm.finalize() == Result.INVALID_ARGUMENT
    part = Comm(split(comm, 0, 0), world.rank, 2)
    other = ones()
    check(summed(part, other))
    part.synchronize()
    assert list(other.get()) == [2.0] * 4
    check(part.destroy())
    check(comm.destroy())


def test_a_revoked_communicator() -> None:
    run(revoked, 2)


# Dead peers


def waits_for_a_dead_peer(world: World, hosts: bool) -> tuple[Result, bool]:
    """Sum with a rank that is killed; tell the state, and whether the sum still hangs."""
    if hosts:
        os.environ["NCCL_HOSTID"] = f"host {world.rank}"
    comm = create(world)
    array = ones()
    check(summed(comm, array))
    comm.synchronize()
    if world.rank == 1:
        world.say("ready")
        time.sleep(60)
    world.hear("killed")
    assert comm.state() == Result.SUCCESS
    check(summed(comm, array))
    if hosts:
        assert eventually(lambda: comm.state() != Result.SUCCESS)
        assert summed(comm, array) == Result.REMOTE_ERROR
        assert comm.destroy() == Result.REMOTE_ERROR
    else:
        time.sleep(3 * SOON)
    found = comm.state(), not comm.is_done()
    check(comm.abort())
    comm.synchronize()
    return found


@pytest.mark.parametrize(("hosts", "state"), [(False, Result.SUCCESS), (True, Result.REMOTE_ERROR)])
def test_a_dead_peer_is_told_where_it_is_on_another_host(hosts: bool, state: Result) -> None:
    with running(waits_for_a_dead_peer, 3, hosts) as ranks:
        ranks.world.hear("ready")
        ranks.kill(1)
        ranks.world.say("killed")
        first, dead, last = ranks.join()
    assert dead.code == -9
    assert first.code == last.code == 0, first.err + last.err
    assert first.result == last.result == (state, True)


def destroys_beside_a_dead_peer(world: World) -> None:
    comm = create(world)
    if world.rank == 1:
        world.say("ready")
        time.sleep(60)
    end = Started(comm.destroy)
    assert end.hangs()
    world.say("waits")
    assert end.returned() == Result.SUCCESS


def test_an_idle_communicator_is_destroyed_beside_a_dead_peer() -> None:
    with running(destroys_beside_a_dead_peer, 2) as ranks:
        ranks.world.hear("ready")
        ranks.world.hear("waits")
        ranks.kill(1)
        first, _ = ranks.join()
    assert first.code == 0, first.err


# What is left


def resources() -> dict[str, int]:
    """Count what this process has, and what is alive on its devices."""
    status = Path("/proc/self/status").read_text()
    maps = Path("/proc/self/maps").read_text()
    kinds = ("streams", "events", "device_blocks", "graphs")
    return {
        "descriptors": len(list(Path("/proc/self/fd").iterdir())),
        "threads": len(list(Path("/proc/self/task").iterdir())),
        "shared": maps.count("emulated-nccl"),
        "files": len(list(Path("/dev/shm").iterdir())),
        "memory": int(status.split("VmRSS:")[1].split()[0]) // 20_000,
        **{kind: control.count(kind) for kind in kinds},
    }


def many(world: World, count: int) -> tuple[dict[str, int], dict[str, int]]:
    """Make and end many communicators in all ways; return what there was after few and all."""
    ok("cudaSetDevice", ctypes.c_int(world.rank))
    array = ones()
    stream = made("cudaStreamCreateWithFlags", 1)
    early: dict[str, int] = {}
    for turn in range(count):
        id = world.tell(unique_id() if world.rank == 0 else None)[0]
        result, handle = begin(id, world.rank, world.size)
        check(result)
        comm = _lived(handle, world, array, stream, turn)
        check(comm.abort() if turn % 3 == 1 else comm.destroy())
        if turn == 20:
            eventually(lambda: resources()["threads"] <= 3, 0.5)
            early = resources()
    eventually(lambda: resources() == early, 2.0)
    return early, resources()


def _lived(handle: int, world: World, array: Array, stream: int, turn: int) -> Comm:
    comm = Comm.__new__(Comm)
    comm.handle, comm.rank, comm.size, comm.stream = handle, world.rank, world.size, stream
    check(summed(comm, array))
    part = split(comm, turn % 2, 0)
    if turn % 3 == 2:
        ok("cudaStreamBeginCapture", stream, 0)
        check(summed(comm, array))
        ok("cudaGraphDestroy", made_last("cudaStreamEndCapture", stream))
        check(call("ncclCommFinalize", part))
    ok("cudaStreamSynchronize", stream)
    check(call("ncclCommDestroy", part))
    return comm


@pytest.mark.limit(120)
def test_two_hundred_communicators_leave_nothing() -> None:
    for rank in run(many, 2, 200, limit=100):
        early, late = rank.result
        assert early == late
