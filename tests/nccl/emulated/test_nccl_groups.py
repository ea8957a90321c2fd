"""Groups of the emulated NCCL, messages between ranks, streams, and graphs."""

from __future__ import annotations

import ctypes
import os
import threading
import time
from typing import Any

import numpy as np
import pytest

from tests.nccl.emulated.calls import Error, Gate, code, made, made_last, ok
from tests.nccl.emulated.collectives import (
    Array,
    Comm,
    Result,
    begin,
    call,
    check,
    create,
    devices,
    eventually,
    group,
    last_error,
    unique_id,
)
from tests.nccl.emulated.worlds import World, run

SOON = 0.1
"""Seconds in which what nothing holds would have ended."""


def floats(count: int, value: float) -> Array:
    return Array(np.full(count, value, np.float32))


def summed(comm: Comm, array: Array, stream: int | None = None) -> Result:
    """Sum an array in place."""
    return comm.all_reduce(array.pointer, array.pointer, array.size, array.dtype, stream=stream)


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
    # The next group knows nothing of it.
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


# Messages


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
@pytest.mark.parametrize("count", [0, 1, 16_384, 50_001])
def test_messages_of_a_group_go_together(size: int, count: int) -> None:
    run(all_to_all, size, count)


def messages_in_turn(world: World) -> None:
    """Send from rank 0 through all others, each call on its own."""
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


# Streams


def order_of_the_calls(world: World) -> None:
    """Call on two streams in turn; the streams have nothing else that orders them."""
    comm = create(world)
    other = made("cudaStreamCreateWithFlags", 1)
    array = floats(10, 1)
    check(summed(comm, array))
    gate = Gate(comm.stream if world.rank else other)
    for _ in range(10):
        check(summed(comm, array, other))
        check(summed(comm, array))
    time.sleep(SOON)
    gate.open()
    comm.synchronize()
    assert list(array.get()) == [2.0**21] * 10
    check(comm.destroy())


def test_one_communicator_keeps_the_order_of_the_calls_on_all_streams() -> None:
    run(order_of_the_calls, 2)


def streams_of_a_group(world: World) -> None:
    """Let the streams of a group wait for each other before, and behind it."""
    comm = create(world)
    other = made("cudaStreamCreateWithFlags", 1)
    one, two = floats(10, 1), floats(10, 2)
    gate = Gate(other)
    with group():
        check(summed(comm, one))
        check(summed(comm, two, other))
    time.sleep(SOON)
    assert not comm.is_done()
    gate.open()
    ok("cudaStreamSynchronize", other)
    assert eventually(comm.is_done)
    assert (list(one.get()), list(two.get())) == ([2.0] * 10, [4.0] * 10)
    check(comm.destroy())


def test_a_group_joins_all_its_streams() -> None:
    run(streams_of_a_group, 2)


def default_streams(world: World) -> None:
    """Use the default streams while another device is the current one."""
    comm = create(world)
    array = floats(10, 1)
    device = ctypes.c_int()
    ok("cudaSetDevice", ctypes.c_int((world.rank + 1) % devices()))
    for stream in (0, 1, 2):
        check(summed(comm, array, stream))
    ok("cudaGetDevice", ctypes.byref(device))
    assert device.value == (world.rank + 1) % devices()
    ok("cudaSetDevice", ctypes.c_int(world.rank))
    ok("cudaDeviceSynchronize")
    assert list(array.get()) == [8.0] * 10
    check(comm.destroy())


def test_default_streams_are_those_of_the_communicators_device() -> None:
    run(default_streams, 2)


# Graphs


def captured(world: World) -> None:
    """Capture sums, messages and a second stream; replay."""
    # What a graph does not order runs in another order on each rank.
    os.environ["EMULATED_ORDER"] = str(world.rank)
    comm = create(world)
    other, event = made("cudaStreamCreateWithFlags", 1), made("cudaEventCreateWithFlags", 2)
    one, two, answer = floats(1000, 1), floats(70_000, 1), floats(10, 0)
    check(summed(comm, floats(1, 0)))
    ok("cudaStreamBeginCapture", comm.stream, 0)
    check(summed(comm, one))
    with group():
        check(comm.send(one.pointer, 10, np.float32, 1 - world.rank))
        check(comm.receive(answer.pointer, 10, np.float32, 1 - world.rank))
    ok("cudaEventRecord", event, comm.stream)
    ok("cudaStreamWaitEvent", other, event, 0)
    # Nothing in the graph orders these two, but the communicator does.
    check(summed(comm, two, other))
    check(summed(comm, one))
    ok("cudaEventRecord", event, other)
    ok("cudaStreamWaitEvent", comm.stream, event, 0)
    graph = made_last("cudaStreamEndCapture", comm.stream)
    comm.synchronize()
    assert list(one.get()) == [1.0] * 1000
    run = made("cudaGraphInstantiate", graph, 0)
    for _ in range(5):
        ok("cudaGraphLaunch", run, comm.stream)
    comm.synchronize()
    assert list(one.get()) == [2.0**10] * 1000
    assert list(two.get()) == [2.0**5] * 70_000
    assert list(answer.get()) == [2.0**9] * 10
    # Calls outside of the graph go on.
    check(summed(comm, one))
    comm.synchronize()
    assert list(one.get()) == [2.0**11] * 1000
    ok("cudaGraphExecDestroy", run)
    ok("cudaGraphDestroy", graph)
    check(comm.destroy())


def test_what_is_captured_is_done_at_each_launch() -> None:
    run(captured, 2)


def captured_alone(world: World) -> None:
    """Capture on one rank what the other calls: NCCL wants that alike on all, and so it hangs."""
    comm = create(world)
    array = floats(10, 1)
    if world.rank == 0:
        ok("cudaStreamBeginCapture", comm.stream, 0)
    check(summed(comm, array))
    if world.rank == 1:
        time.sleep(SOON)
        assert not comm.is_done()
        check(comm.abort())
        return
    graph = made_last("cudaStreamEndCapture", comm.stream)
    ok("cudaGraphDestroy", graph)
    check(comm.abort())


def test_a_capture_runs_nothing() -> None:
    run(captured_alone, 2)


def graphs_keep_communicators(world: World) -> None:
    comm = create(world)
    array = floats(10, 1)
    ok("cudaStreamBeginCapture", comm.stream, 0)
    check(summed(comm, array))
    graph = made_last("cudaStreamEndCapture", comm.stream)
    run = made("cudaGraphInstantiate", graph, 0)
    ok("cudaGraphDestroy", graph)
    ended: list[Result] = []

    def end() -> None:
        ended.append(comm.destroy() if world.rank else comm.abort())

    thread = _thread(end)
    time.sleep(SOON)
    assert not ended
    ok("cudaGraphExecDestroy", run)
    thread.join()
    assert ended == [Result.SUCCESS]


def test_the_end_of_a_communicator_waits_for_its_graphs() -> None:
    run(graphs_keep_communicators, 2)


def graph_of_freed_memory(world: World) -> None:
    comm = create(world)
    array, live = floats(10, 1), floats(10, 1)
    ok("cudaStreamBeginCapture", comm.stream, 0)
    check(summed(comm, array))
    graph = made_last("cudaStreamEndCapture", comm.stream)
    run = made("cudaGraphInstantiate", graph, 0)
    array.free()
    ok("cudaGraphLaunch", run, comm.stream)
    assert eventually(lambda: code("cudaStreamQuery", comm.stream) == Error.ILLEGAL_ADDRESS)
    assert summed(comm, live) == Result.CUDA_ERROR
    assert last_error() == "Cuda failure 700 'an illegal memory access was encountered'"


def test_memory_that_is_freed_before_a_replay_is_an_illegal_address() -> None:
    for rank in run(graph_of_freed_memory, 2):
        assert "AllReduce uses memory that has been freed: an illegal address" in rank.err


def mixed_capture(world: World) -> None:
    comm = create(world)
    other = made("cudaStreamCreateWithFlags", 1)
    one, two = floats(10, 1), floats(10, 1)
    ok("cudaStreamBeginCapture", comm.stream, 0)
    check(call("ncclGroupStart"))
    check(summed(comm, one))
    assert summed(comm, two, other) == Result.INVALID_USAGE
    assert "must either be all uncaptured or all captured" in last_error()
    assert call("ncclGroupEnd") == Result.INVALID_USAGE
    graph = made_last("cudaStreamEndCapture", comm.stream)
    ok("cudaGraphDestroy", graph)
    check(comm.destroy())


def test_a_group_is_captured_whole_or_not() -> None:
    run(mixed_capture, 2)


# Several ranks in one process


def all_devices(world: World) -> None:
    """Make communicators of all devices, by one call, and by a group of calls."""
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
    """Make two ranks of a process of which one has no room: the other does not wait for it."""
    ok("cudaSetDevice", ctypes.c_int(1))
    made("cudaMalloc", ctypes.c_size_t(900 << 20))
    handles = (ctypes.c_void_p * 2)()
    assert call("ncclCommInitAll", handles, ctypes.c_int(2), None) == Result.CUDA_ERROR
    for handle in handles:
        check(call("ncclCommDestroy", handle))


def test_a_creation_that_fails_ends_the_others_of_its_group() -> None:
    variables = {"EMULATED_NCCL_MEMORY": "200", "EMULATED_MEMORY": "1000"}
    run(one_creation_fails, 1, EMULATED_DEVICES="2", **variables)


def _thread(function: Any) -> Any:
    thread = threading.Thread(target=function, daemon=True)
    thread.start()
    return thread
