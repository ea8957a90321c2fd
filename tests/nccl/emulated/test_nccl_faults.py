"""Ranks of the emulated NCCL that fail, are slow, hang or die, and the lines that NCCL prints."""

from __future__ import annotations

import ctypes
import threading
import time

import numpy as np
import pytest

from tests.nccl.emulated import control
from tests.nccl.emulated.calls import Error, made, ok
from tests.nccl.emulated.collectives import (
    Array,
    Comm,
    Result,
    begin,
    call,
    check,
    config,
    create,
    eventually,
    last_error,
    nccl,
    unique_id,
)
from tests.nccl.emulated.worlds import World, run, running

SOON = 0.15
"""Seconds in which an unblocked call would have returned."""


def summed(comm: Comm) -> tuple[Result, Array]:
    array = Array(np.ones(4, np.float32))
    return comm.all_reduce(array.pointer, array.pointer, 4, np.float32), array


def alone() -> Comm:
    result, handle = begin(unique_id(), 0, 1)
    check(result)
    return Comm(handle, 0, 1)


# Faults


def failing(world: World) -> list[Result]:
    """Fail the second and third sum of rank 1, on that rank alone."""
    comm = create(world)
    results = []
    for _ in range(4):
        result, _ = summed(comm)
        results.append(result)
        world.tell()
    check(comm.abort())
    return results


def test_the_nth_call_of_a_rank_fails() -> None:
    which = "rank=1,function=ncclAllReduce"
    faults = f"{which},nth=2,do=fail:2;{which},nth=3,do=fail:6"
    first, second = run(failing, 2, EMULATED_NCCL_FAULTS=faults)
    assert first.result == [0, 0, 0, 0]
    assert second.result == [0, Result.SYSTEM_ERROR, Result.REMOTE_ERROR, 0]


def failing_from_now_on(world: World) -> list[Result]:
    nccl().emulated_nccl_faults(b"function=ncclGetUniqueId,nth=2+,do=fail:2")
    id = ctypes.create_string_buffer(128)
    results = [call("ncclGetUniqueId", id) for _ in range(4)]
    assert last_error() == "ncclGetUniqueId : failed, as EMULATED_NCCL_FAULTS asks"
    nccl().emulated_nccl_faults(b"")
    return [*results, call("ncclGetUniqueId", id)]


def test_all_calls_from_one_on_fail_until_it_is_taken_back() -> None:
    (rank,) = run(failing_from_now_on, 1)
    assert rank.result == [0, 2, 2, 2, 0]


def counted(world: World) -> None:
    """Count and fail calls of NCCL like calls of CUDA."""
    before = control.calls("ncclAllReduce")
    comm = alone()
    control.fail("ncclAllReduce", 2, Result.SYSTEM_ERROR)
    assert [summed(comm)[0] for _ in range(3)] == [0, 2, 0]
    assert control.calls("ncclAllReduce") == before + 3


def test_calls_are_counted_and_fail_like_those_of_cuda() -> None:
    run(counted, 1)


def slow(world: World, job: bool) -> None:
    """Delay rank 1 in a call, or in its work on the stream."""
    comm = create(world)
    begun = time.monotonic()
    check(summed(comm)[0])
    called = time.monotonic() - begun
    comm.synchronize()
    done = time.monotonic() - begun
    assert done > 0.5
    assert (called > 0.5) is (world.rank == 1 and not job)
    check(comm.destroy())


@pytest.mark.parametrize("job", [False, True])
def test_a_slow_rank(job: bool) -> None:
    faults = f"rank=1,function=ncclAllReduce,do=slow{'-job' if job else ''}:0.5"
    run(slow, 2, job, EMULATED_NCCL_FAULTS=faults, NCCL_RUNTIME_CONNECT="0")


def hanging(world: World) -> None:
    """Hang rank 1 in its work on the stream: both ranks hang until they abort."""
    comm = create(world)
    check(summed(comm)[0])
    time.sleep(SOON)
    assert not comm.is_done()
    world.tell()
    check(comm.abort())
    comm.synchronize()


def test_a_job_that_hangs_until_abort() -> None:
    run(hanging, 2, EMULATED_NCCL_FAULTS="rank=1,function=ncclAllReduce,do=hang-job")


def dying(world: World) -> None:
    comm = create(world)
    check(summed(comm)[0])
    time.sleep(60)


@pytest.mark.parametrize("do", ["die", "die-job"])
def test_a_rank_that_dies(do: str) -> None:
    faults = f"rank=1,function=ncclAllReduce,do={do}"
    variables = {"EMULATED_NCCL_FAULTS": faults, "NCCL_RUNTIME_CONNECT": "0"}
    with running(dying, 2, **variables) as ranks:
        assert eventually(lambda: ranks.processes[1].exitcode == -9)
        assert ranks.processes[0].exitcode is None


def asynchronous(world: World) -> None:
    comm = create(world)
    check(summed(comm)[0])
    assert comm.state() == Result.SUCCESS
    check(summed(comm)[0])
    assert comm.state() == Result.REMOTE_ERROR
    # The error stays; only an abort is possible.
    assert summed(comm)[0] == Result.REMOTE_ERROR
    assert comm.destroy() == Result.REMOTE_ERROR
    check(comm.abort())


def test_an_asynchronous_error() -> None:
    run(asynchronous, 1, EMULATED_NCCL_FAULTS="function=ncclAllReduce,nth=2,do=async:6")


def hangs_in_the_call(world: World) -> None:
    """Hang in the call itself, until another thread aborts."""
    comm = alone()
    thread = threading.Thread(target=summed, args=(comm,), daemon=True)
    thread.start()
    thread.join(SOON)
    assert thread.is_alive()
    check(comm.abort())
    thread.join(10)
    assert not thread.is_alive()


def test_a_call_that_hangs_until_abort() -> None:
    run(hangs_in_the_call, 1, EMULATED_NCCL_FAULTS="do=hang,function=ncclAllReduce")


def test_a_fault_that_there_is_not_ends_the_process() -> None:
    for text in ("do=explode", "when=never"):
        with running(counted, 1, EMULATED_NCCL_FAULTS=text) as ranks:
            (rank,) = ranks.join()
        assert rank.code == 2
        assert f"EMULATED_NCCL_FAULTS: there is no {text}" in rank.err


def lost_device(world: World) -> None:
    """Create and sum on a lost device."""
    comm = alone()
    control.fail("cudaDeviceSynchronize", 1, Error.LAUNCH_FAILURE, sticky=True)
    array = Array(np.ones(0, np.float32)).pointer
    control.library().cudaDeviceSynchronize()
    result, handle = begin(unique_id(), 0, 1)
    assert (result, handle) == (Result.CUDA_ERROR, 0)
    assert last_error() == "Cuda failure 719 'unspecified launch failure'"
    assert comm.all_reduce(array, array, 4, np.float32) != Result.SUCCESS
    check(comm.abort())


def test_a_lost_device() -> None:
    run(lost_device, 1)


# Times and memory


def times(world: World) -> tuple[float, float]:
    begun = time.monotonic()
    comm = create(world)
    made = time.monotonic()
    check(comm.abort())
    return made - begun, time.monotonic() - made


def test_creation_and_abort_take_as_long_as_asked_for() -> None:
    variables = {"EMULATED_NCCL_INIT": "0.4", "EMULATED_NCCL_ABORT": "0.6"}
    for rank in run(times, 2, **variables):
        creation, abort = rank.result
        assert creation > 0.4
        assert abort > 0.6


def short_of_memory(world: World) -> Result:
    """Create without enough memory on rank 1's device; rank 0 waits for rank 1, as in NCCL."""
    ok("cudaSetDevice", ctypes.c_int(world.rank))
    if world.rank:
        made("cudaMalloc", ctypes.c_size_t(900 << 20))
    id = world.tell(unique_id() if world.rank == 0 else None)[0]
    if world.rank:
        result, _ = begin(id, 1, 2)
        assert last_error() == "Cuda failure 2 'out of memory'"
        world.say("failed")
        return result
    result, handle = begin(id, 0, 2, config(blocking=0))
    comm = Comm(handle, 0, 2)
    world.hear("failed")
    time.sleep(SOON)
    state = comm.state()
    check(comm.abort())
    return state


def test_memory_that_runs_out_in_a_creation() -> None:
    variables = {"EMULATED_NCCL_MEMORY": "200", "EMULATED_MEMORY": "1000"}
    first, second = run(short_of_memory, 2, **variables)
    assert first.result == Result.IN_PROGRESS
    assert second.result == Result.CUDA_ERROR


# Lines


def talking(world: World) -> None:
    comm = create(world)
    check(summed(comm)[0])
    comm.all_reduce(0, 0, 1, 99)
    check(comm.destroy())


@pytest.mark.parametrize("level", ["", "VERSION", "WARN", "INFO"])
def test_lines_say_that_this_is_no_nccl(level: str) -> None:
    first, second = run(talking, 2, NCCL_DEBUG=level, EMULATED_NCCL_VERSION="22809")
    version = "emulated NCCL version 2.28.9: it is not NCCL, and there is no GPU\n"
    assert first.out.count(version) == (level != "")
    assert version not in second.out
    for rank, ended in enumerate((first, second)):
        lines = [line for line in ended.out.splitlines() if "version" not in line]
        assert all(f"[{rank}] emulated NCCL " in line for line in lines)
        warned = f"[{rank}] emulated NCCL WARN AllReduce : invalid type 99"
        assert any(warned in line for line in lines) is (level in ("WARN", "INFO"))
        assert any("INFO AllReduce: sendbuff" in line for line in lines) is (level == "INFO")
        assert not ended.err
