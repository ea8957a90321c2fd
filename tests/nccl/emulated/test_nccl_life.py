"""The end of communicators of the emulated NCCL: hangs, dead peers, and leftovers."""

from __future__ import annotations

import ctypes
import os
import time
from pathlib import Path

import numpy as np
import pytest

from tests.nccl.emulated import control
from tests.nccl.emulated.calls import Gate, made, made_last, ok
from tests.nccl.emulated.collectives import (
    Array,
    Comm,
    Result,
    begin,
    call,
    check,
    create,
    eventually,
    last_error,
    unique_id,
)
from tests.nccl.emulated.sums import SOON, Started, ones, split, summed
from tests.nccl.emulated.worlds import World, run, running

# Ends


def queued(world: World) -> None:
    """Abort while calls wait on streams after other work, and inside of one."""
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
    # The abort waits for its work on streams, as NCCL's does.
    assert aborted.hangs()
    ok("cudaMemsetAsync", after.pointer, ctypes.c_int(0), 16, comm.stream)
    gate.open()
    assert aborted.returned() == Result.SUCCESS
    # The streams continue.
    for stream in (comm.stream, other):
        ok("cudaStreamSynchronize", stream)


def test_an_abort_ends_what_is_on_streams() -> None:
    run(queued, 2)


def ends(world: World, kind: str) -> None:
    """End a communicator before its peer does."""
    comm = create(world)
    array = ones()
    check(summed(comm, array))
    if world.rank:
        world.tell()
        time.sleep(SOON)
        check(comm.abort() if kind == "abort" else comm.destroy())
        world.hear("ended")  # a dead process counts, too
        return
    end = Started(comm.finalize if kind == "finalize" else comm.destroy)
    assert end.hangs()
    world.tell()
    assert end.returned() == Result.SUCCESS
    world.say("ended")
    if kind == "finalize":
        assert comm.finalize() == Result.INVALID_ARGUMENT
        check(comm.destroy())


@pytest.mark.parametrize("kind", ["destroy", "abort", "finalize"])
def test_an_end_waits_for_the_ends_of_the_ranks_of_the_host(kind: str) -> None:
    run(ends, 2, kind)


def end_of_one(world: World) -> None:
    """Destroy on one rank alone, and abort from another thread."""
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
    """Destroy on one rank alone while the other is on another host."""
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
    """Destroy with work on the stream, which completes first."""
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
    """Revoke a communicator inside a call, split it, and destroy it."""
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
    """Sum with a rank that is killed; return the state, and whether the sum still hangs."""
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


# Leftovers


def resources() -> dict[str, int]:
    """Count the resources of this process, and the live objects on its devices."""
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
    """Make and end many communicators in all ways; return the counts after a few and after all."""
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
