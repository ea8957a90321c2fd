"""Streams and graphs with operations of the emulated NCCL."""

from __future__ import annotations

import ctypes
import os
import time

import numpy as np

from tests.nccl.emulated.calls import Error, Gate, code, made, made_last, ok
from tests.nccl.emulated.collectives import (
    Result,
    call,
    check,
    create,
    devices,
    eventually,
    group,
    last_error,
)
from tests.nccl.emulated.sums import SOON, Started, floats, summed
from tests.nccl.emulated.worlds import World, run

# Streams


def order_of_the_calls(world: World) -> None:
    """Call on two streams in turn; only the communicator orders the streams."""
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
    """Let the streams of a group wait for each other before the group and after it."""
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
    if world.rank:
        world.hear("looked")
    with group():
        check(summed(comm, one))
        check(summed(comm, two, other))
    if not world.rank:
        time.sleep(SOON)
        assert code("cudaStreamQuery", other) == Error.NOT_READY
        world.say("looked")
    ok("cudaStreamSynchronize", other)
    assert (list(one.get()), list(two.get())) == ([4.0] * 10, [8.0] * 10)
    check(comm.destroy())


def test_a_group_joins_all_its_streams() -> None:
    run(streams_of_a_group, 2)


def default_streams(world: World) -> None:
    """Use the default streams while another device is current."""
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
    # Work that the graph does not order runs in another order on each rank.
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
    # The graph does not order these two; the communicator does.
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
    # Calls outside of the graph still work.
    check(summed(comm, one))
    comm.synchronize()
    assert list(one.get()) == [2.0**11] * 1000
    ok("cudaGraphExecDestroy", run)
    ok("cudaGraphDestroy", graph)
    check(comm.destroy())


def test_what_is_captured_is_done_at_each_launch() -> None:
    run(captured, 2)


def captured_alone(world: World) -> None:
    """Capture a call on one rank alone: NCCL wants equal captures on all ranks, so it hangs."""
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
    end = Started(comm.destroy if world.rank else comm.abort)
    assert end.hangs()
    ok("cudaGraphExecDestroy", run)
    assert end.returned() == Result.SUCCESS


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
