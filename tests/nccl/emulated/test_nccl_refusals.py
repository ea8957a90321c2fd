"""Refusals of the emulated NCCL, with NCCL's codes and texts."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from tests.nccl.emulated.calls import made, ok
from tests.nccl.emulated.collectives import (
    Array,
    Comm,
    Config,
    Result,
    UniqueId,
    begin,
    call,
    check,
    config,
    create,
    unique_id,
)
from tests.nccl.emulated.sums import alone, refused
from tests.nccl.emulated.worlds import World, run

ARGUMENT, USAGE = Result.INVALID_ARGUMENT, Result.INVALID_USAGE


# Arguments of collectives


def arguments(world: World) -> None:
    comm = create(world)
    array = Array(np.ones(8, np.float32))
    here = array.pointer

    def summed(count: int = 4, dtype: Any = np.float32, op: Any = "sum", **more: Any) -> Result:
        return comm.all_reduce(more.get("source", here), more.get("to", here), count, dtype, op)

    refused(summed(dtype=12), ARGUMENT, "AllReduce : invalid type 12")
    refused(summed(dtype=-1), ARGUMENT, "AllReduce : invalid type -1")
    refused(summed(op=-1), ARGUMENT, "AllReduce : invalid reduction operation -1")
    unknown = "AllReduce : reduction operation 5 unknown to this communicator"
    refused(summed(op=5), ARGUMENT, unknown)
    for root in (-1, 2):
        words = f"invalid root {root} (root should be in the 0..2 range)"
        refused(comm.broadcast(here, here, 4, np.float32, root), ARGUMENT, f"Broadcast : {words}")
        refused(comm.reduce(here, here, 4, np.int8, root=root), ARGUMENT, f"Reduce : {words}")
        refused(comm.send(here, 4, np.int8, root), ARGUMENT, f"Send : {words}")
        refused(comm.receive(here, 4, np.int8, root), ARGUMENT, f"Recv : {words}")
    refused(summed(dtype=10), USAGE, "a reduction of fp8 numbers is not emulated")
    # The communicator is still usable.
    check(summed())
    comm.synchronize()
    assert list(array.get()) == [2.0] * 4 + [1.0] * 4
    # Without elements, no argument is checked.
    check(comm.all_reduce(0, 0, 0, np.float32))
    check(comm.destroy())


def test_arguments_of_collectives() -> None:
    run(arguments, 2)


def memory(world: World) -> None:
    """Pass memory that is not the device's, too short, freed, or another device's."""
    comm = create(world)
    array = Array(np.ones(8, np.float32))
    ok("cudaSetDevice", ctypes.c_int(1 - world.rank))
    other = Array(np.ones(8, np.float32))
    ok("cudaSetDevice", ctypes.c_int(world.rank))
    freed = Array(np.ones(8, np.float32))
    freed.free()
    host = np.ones(8, np.float32).ctypes.data
    here = array.pointer
    for pointer in (0, 8, host, freed.pointer, array.at(7)):
        sent = comm.all_reduce(pointer, here, 4, np.float32)
        refused(sent, ARGUMENT, "AllReduce : sendbuff", "is not a valid pointer")
        received = comm.all_reduce(here, pointer, 4, np.float32)
        refused(received, ARGUMENT, "AllReduce : recvbuff", "is not a valid pointer")
        refused(comm.send(pointer, 4, np.float32, 0), ARGUMENT, "Send : buff")
        refused(comm.receive(pointer, 4, np.float32, 0), ARGUMENT, "Recv : buff")
    elsewhere = f"allocated on device {1 - world.rank} mismatchs with NCCL device {world.rank}"
    refused(comm.all_reduce(other.pointer, here, 4, np.float32), ARGUMENT, elsewhere)
    # The total of these two calls is too long.
    refused(comm.all_gather(here, here, 5, np.float32), ARGUMENT, "AllGather : recvbuff")
    refused(comm.reduce_scatter(here, here, 5, np.float32), ARGUMENT, "ReduceScatter : sendbuff")
    # A rank that is not the root needs no memory for the result, or none to send.
    unused = 0 if world.rank else here
    check(comm.reduce(here, unused, 4, np.float32))
    check(comm.broadcast(unused, here, 4, np.float32))
    comm.synchronize()
    check(comm.destroy())


def test_memory_that_is_none_of_the_device() -> None:
    run(memory, 2)


def streams(world: World) -> None:
    comm = create(world)
    array = Array(np.ones(8, np.float32))
    ok("cudaSetDevice", ctypes.c_int(1 - world.rank))
    elsewhere = made("cudaStreamCreateWithFlags", 1)
    ok("cudaSetDevice", ctypes.c_int(world.rank))
    for stream in (elsewhere, 12345):
        result = comm.all_reduce(array.pointer, array.pointer, 4, np.float32, stream=stream)
        refused(result, Result.CUDA_ERROR, "Cuda failure 400 'invalid resource handle'")
    check(comm.destroy())


def test_streams_of_other_devices() -> None:
    run(streams, 2)


# Communicators


def handles(world: World) -> None:
    comm = alone()
    array = Array(np.ones(8, np.float32))
    here = array.pointer
    null = Comm(0, 0, 1)
    value = ctypes.byref(ctypes.c_int())
    refused(null.all_reduce(here, here, 4, np.float32), ARGUMENT, "AllReduce : comm argument is")
    refused(call("ncclCommCount", 0, value), ARGUMENT, "CommCount : comm argument is NULL")
    refused(call("ncclCommCount", comm.handle, 0), ARGUMENT, "CommCount : count argument is NULL")
    refused(call("ncclCommUserRank", 4096, value), ARGUMENT, "corrupted comm object detected")
    for name in ("ncclCommDestroy", "ncclCommAbort", "ncclCommFinalize"):
        check(call(name, 0))
        refused(call(name, 4096), ARGUMENT, "corrupted comm object detected")
    check(comm.destroy())
    for end in (comm.destroy, comm.abort, comm.finalize):
        refused(end(), ARGUMENT, "has already been destroyed")
    refused(comm.all_reduce(here, here, 4, np.float32), ARGUMENT, "has already been destroyed")
    other = alone()
    check(other.abort())
    refused(other.abort(), ARGUMENT, "has already been destroyed")


def test_communicators_that_are_none() -> None:
    (rank,) = run(handles, 1)
    assert rank.err.count("has already been destroyed") == 5
    assert "emulated NCCL: CommDestroy : comm 0xecc000000000000 has already been" in rank.err


def creations(world: World) -> None:
    id = unique_id()
    for rank, size in ((-1, 2), (2, 2), (0, 0), (0, -1)):
        refused(begin(id, rank, size)[0], ARGUMENT, f"Invalid rank requested : {rank}/{size}")
    missing = call("ncclCommInitRank", 0, ctypes.c_int(1), UniqueId(), ctypes.c_int(0))
    refused(missing, ARGUMENT, "CommInitRank : newcomm argument is NULL")
    refused(call("ncclGetUniqueId", 0), ARGUMENT, "GetUniqueId : out argument is NULL")
    refused(begin(b"\1" * 128, 0, 1)[0], Result.INTERNAL_ERROR, "is none that ncclGetUniqueId")
    # An id is valid for one communicator.
    check(begin(id, 0, 1)[0])
    refused(begin(id, 0, 1)[0], Result.REMOTE_ERROR, "Connection refused")


def test_creations() -> None:
    run(creations, 1)


def configurations(world: World) -> None:
    def made_with(settings: Config) -> Result:
        return begin(unique_id(), 0, 1, settings)[0]

    check(made_with(config()))
    check(made_with(config(minCTAs=1, maxCTAs=4, cgaClusterSize=2, splitShare=1, blocking=1)))
    short = config(CTAPolicy=7, collnetEnable=9)
    short.size = Config.trafficClass.offset  # the size in an older version
    check(made_with(short))
    wrong = config()
    wrong.magic = 0
    refused(made_with(wrong), ARGUMENT, "not initialized via NCCL_CONFIG_INITIALIZER")
    for name, value in (("blocking", 2), ("cgaClusterSize", -1), ("splitShare", 2)):
        words = f"Invalid config {name} attribute value {value}"
        refused(made_with(config(**{name: value})), ARGUMENT, words)
    words = "Invalid config min/max channels attribute value"
    refused(made_with(config(minCTAs=4, maxCTAs=2)), ARGUMENT, f"{words} 4/2")
    # NCCL compares a minimum with the default maximum.
    refused(made_with(config(minCTAs=4)), ARGUMENT, words)
    refused(made_with(config(maxCTAs=0)), ARGUMENT, words)


def test_configurations() -> None:
    run(configurations, 1)


def devices_of_a_process(world: World) -> None:
    comms = (ctypes.c_void_p * 2)()
    for wrong in ([0, 2], [-1, 0]):
        result = call("ncclCommInitAll", comms, ctypes.c_int(2), (ctypes.c_int * 2)(*wrong))
        refused(result, ARGUMENT, "Invalid device")
    same = (ctypes.c_int * 2)(1, 1)
    assert call("ncclCommInitAll", comms, ctypes.c_int(2), same) == USAGE
    refused(
        call("ncclCommInitAll", comms, ctypes.c_int(-1), None), ARGUMENT, "Invalid device count"
    )
    refused(call("ncclCommInitAll", 0, ctypes.c_int(1), None), ARGUMENT, "comms argument is NULL")


def test_devices_of_a_process() -> None:
    run(devices_of_a_process, 1, EMULATED_DEVICES="2")
