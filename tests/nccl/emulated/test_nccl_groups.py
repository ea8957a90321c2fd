"""Groups of the emulated NCCL, and several ranks in one process."""

from __future__ import annotations

import ctypes
import time
from typing import Any

import numpy as np

from tests.nccl.emulated.calls import made, ok
from tests.nccl.emulated.collectives import (
    Comm,
    Result,
    begin,
    call,
    check,
    create,
    group,
    last_error,
    unique_id,
)
from tests.nccl.emulated.sums import SOON, floats, summed
from tests.nccl.emulated.worlds import World, run

# Groups


def nothing_before_the_end(world: World) -> None:
    comm = create(world)
    array = floats(4, world.rank)
    check(call("ncclGroupStart"))
    with group():
        check(summed(comm, array))
    check(summed(comm, array))
    world.tell()
    time.sleep(SOON)
    comm.synchronize()
    assert list(array.get()) == [world.rank] * 4
    check(call("ncclGroupEnd"))
    comm.synchronize()
    assert list(array.get()) == [2.0] * 4
    assert call("ncclGroupEnd") == Result.INVALID_USAGE
    assert last_error() == "ncclGroupEnd: not in a group call."
    check(comm.destroy())


def test_nothing_of_a_group_begins_before_its_outermost_end() -> None:
    run(nothing_before_the_end, 2)


def an_error_spoils_all(world: World) -> None:
    comm = create(world)
    array = floats(4, 1)
    check(call("ncclGroupStart"))
    check(summed(comm, array))
    result = comm.all_reduce(array.pointer, array.pointer, 4, 99)
    assert result == Result.INVALID_ARGUMENT
    assert call("ncclGroupEnd") == Result.INVALID_ARGUMENT
    comm.synchronize()
    assert list(array.get()) == [1.0] * 4
    # The next group is independent.
    with group():
        check(summed(comm, array))
    comm.synchronize()
    assert list(array.get()) == [2.0] * 4
    check(comm.destroy())


def test_an_error_in_a_group_spoils_all_of_it() -> None:
    run(an_error_spoils_all, 2)


def one_rank_waits_for_no_end(world: World) -> None:
    comm = create(world)
    source, to = floats(4, 7), floats(4, 0)
    with group():
        check(comm.all_reduce(source.pointer, to.pointer, 4, np.float32, "avg"))
        comm.synchronize()
        assert list(to.get()) == [7.0] * 4
    check(comm.destroy())


def test_with_one_rank_an_operation_waits_for_no_end() -> None:
    run(one_rank_waits_for_no_end, 1)


def several_communicators(world: World) -> None:
    comms = [create(world) for _ in range(3)]
    arrays = [floats(100, world.rank + n) for n in range(3)]
    with group():
        for comm, array in zip(comms, arrays, strict=True):
            check(summed(comm, array))
    for n, (comm, array) in enumerate(zip(comms, arrays, strict=True)):
        comm.synchronize()
        assert list(array.get()) == [3 * n + 3] * 100
        check(comm.destroy())


def test_a_group_of_several_communicators() -> None:
    run(several_communicators, 3)


def blocking_and_not(world: World) -> None:
    blocking, other = create(world), create(world, blocking=0)
    assert other.settled() == Result.SUCCESS
    array = floats(4, 1)
    check(call("ncclGroupStart"))
    check(summed(blocking, array))
    assert summed(other, array) == Result.INVALID_ARGUMENT
    words = "Blocking and nonblocking communicators are not allowed in the same group."
    assert last_error() == words
    assert call("ncclGroupEnd") == Result.INVALID_ARGUMENT
    comm = create(world)
    check(summed(comm, array))
    comm.synchronize()
    assert list(array.get()) == [2.0] * 4


def test_a_group_blocks_or_does_not() -> None:
    run(blocking_and_not, 2)


# Several ranks in one process


def all_devices(world: World) -> None:
    """Create communicators of all devices, by one call, and by a group of calls."""
    handles = (ctypes.c_void_p * 3)()
    check(call("ncclCommInitAll", handles, ctypes.c_int(3), None))
    comms = [Comm(handle, rank, 3) for rank, handle in enumerate(handles)]
    _sum_on_all(comms)
    id = unique_id()
    results = []
    check(call("ncclGroupStart"))
    for rank in range(3):
        ok("cudaSetDevice", ctypes.c_int(rank))
        results.append(begin(id, rank, 3))
    check(call("ncclGroupEnd"))
    assert [result for result, _ in results] == [Result.SUCCESS] * 3
    _sum_on_all([Comm(handle, rank, 3) for rank, (_, handle) in enumerate(results)])


def _sum_on_all(comms: list[Comm]) -> None:
    arrays: list[Any] = []
    for comm in comms:
        ok("cudaSetDevice", ctypes.c_int(comm.rank))
        comm.stream = made("cudaStreamCreateWithFlags", 1)
        arrays.append(floats(10, comm.rank))
        assert comm.number("ncclCommCuDevice") == comm.rank
    with group():
        for comm, array in zip(comms, arrays, strict=True):
            check(summed(comm, array))
    for comm, array in zip(comms, arrays, strict=True):
        comm.synchronize()
        assert list(array.get()) == [3.0] * 10
    with group():
        for comm in comms:
            check(comm.destroy())


def test_all_devices_of_a_process() -> None:
    run(all_devices, 1, EMULATED_DEVICES="3")


def one_creation_fails(world: World) -> None:
    """Create two ranks in a process, one without enough memory: the other does not wait for it."""
    ok("cudaSetDevice", ctypes.c_int(1))
    made("cudaMalloc", ctypes.c_size_t(900 << 20))
    handles = (ctypes.c_void_p * 2)()
    assert call("ncclCommInitAll", handles, ctypes.c_int(2), None) == Result.CUDA_ERROR
    for handle in handles:
        check(call("ncclCommDestroy", handle))


def test_a_creation_that_fails_ends_the_others_of_its_group() -> None:
    variables = {"EMULATED_NCCL_MEMORY": "200", "EMULATED_MEMORY": "1000"}
    run(one_creation_fails, 1, EMULATED_DEVICES="2", **variables)
