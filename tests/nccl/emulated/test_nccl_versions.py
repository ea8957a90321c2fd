"""Functions by NCCL version, ranks that share a device, and registered memory."""

from __future__ import annotations

import ctypes
import os
from typing import Any

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
    create,
    last_error,
    nccl,
    unique_id,
)
from tests.nccl.emulated.sums import Started, alone, refused
from tests.nccl.emulated.worlds import World, run

ARGUMENT, USAGE = Result.INVALID_ARGUMENT, Result.INVALID_USAGE


# Ranks on one device


def on_one_device(world: World) -> tuple[Result, str]:
    id = world.tell(unique_id() if world.rank == 0 else None)[0]
    result, handle = begin(id, world.rank, world.size)
    if result == Result.SUCCESS:
        check(Comm(handle, world.rank, world.size).destroy())
    text = last_error()
    # NCCL reports a process of another host that ends before this rank has destroyed its part.
    world.tell(None)
    return result, text


def test_ranks_on_one_device_are_refused() -> None:
    old = run(on_one_device, 2, EMULATED_DEVICES="1", EMULATED_NCCL_VERSION="22809")
    new = run(on_one_device, 2, EMULATED_DEVICES="1", EMULATED_NCCL_VERSION="23003")
    for before, after in zip(old, new, strict=True):
        assert before.result[0] == after.result[0] == USAGE
        assert "Duplicate GPU detected : rank 0 and rank 1 both on CUDA" in before.result[1]
        assert "Set NCCL_MULTI_RANK_GPU_ENABLE=1 to enable" in after.result[1]


@pytest.mark.parametrize(("version", "result"), [("22809", USAGE), ("23003", Result.SUCCESS)])
def test_the_variable_that_allows_them_is_of_2_30_3(version: str, result: Result) -> None:
    variables = {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "EMULATED_NCCL_VERSION": version}
    for rank in run(on_one_device, 2, EMULATED_DEVICES="1", **variables):
        assert rank.result[0] == result


def on_hosts(world: World) -> tuple[Result, str]:
    os.environ["NCCL_HOSTID"] = f"host {world.rank}"
    return on_one_device(world)


def test_ranks_on_one_device_may_say_that_they_are_on_other_hosts() -> None:
    for rank in run(on_hosts, 2, EMULATED_DEVICES="1", EMULATED_NCCL_VERSION="22809"):
        assert rank.result[0] == Result.SUCCESS


def other_versions(world: World) -> tuple[Result, str]:
    os.environ["EMULATED_NCCL_VERSION"] = str(22700 + world.rank)
    ok("cudaSetDevice", ctypes.c_int(world.rank))
    return on_one_device(world)


def test_ranks_with_other_versions_are_refused() -> None:
    for rank, ended in enumerate(run(other_versions, 2)):
        assert ended.result[0] == USAGE
        found = f"rank {1 - rank} version {22701 - rank} rank {rank} version {22700 + rank}"
        assert ended.result[1] == f"Mismatched NCCL version detected : {found}"


# Versions and functions


def version_of(world: World) -> tuple[int, list[str]]:
    value = ctypes.c_int()
    check(call("ncclGetVersion", ctypes.byref(value)))
    comm = alone()
    array = Array(np.ones(8, np.float32))
    here, handle, stream = array.pointer, comm.handle, comm.stream
    memory = ctypes.c_void_p()
    other = ctypes.c_void_p()
    id = UniqueId.from_buffer_copy(unique_id())
    newer: dict[str, tuple[Any, ...]] = {
        "ncclMemAlloc": (ctypes.byref(memory), 64),
        "ncclCommRegister": (handle, here, 32, ctypes.byref(other)),
        "ncclCommInitRankScalable": (
            ctypes.byref(other),
            *(ctypes.c_int(n) for n in (1, 0, 1)),
            ctypes.byref(id),
            None,
        ),
        "ncclCommWindowRegister": (handle, here, 32, ctypes.byref(other), ctypes.c_int(0)),
        "ncclAlltoAll": (here, here, 4, ctypes.c_int(7), handle, stream),
        "ncclCommRevoke": (handle, ctypes.c_int(0)),
    }
    return value.value, [name for name, given in newer.items() if call(name, *given) == USAGE]


def test_a_version_has_what_it_had() -> None:
    functions = [
        "ncclMemAlloc",
        "ncclCommRegister",
        "ncclCommInitRankScalable",
        "ncclCommWindowRegister",
        "ncclAlltoAll",
        "ncclCommRevoke",
    ]
    for version, missing in (
        (21801, 6),
        (21901, 4),
        (22304, 3),
        (22703, 2),
        (22803, 1),
        (22809, 0),
    ):
        (rank,) = run(version_of, 1, EMULATED_NCCL_VERSION=str(version))
        assert rank.result == (version, functions[6 - missing :])
        for name in functions[6 - missing :]:
            assert f"emulated NCCL: {name} is not in NCCL {version}" in rank.err


def not_emulated(world: World) -> None:
    for name in ("ncclRedOpCreatePreMulSum", "ncclRedOpDestroy", "ncclCommShrink"):
        assert call(name) == USAGE
    check(call("ncclGroupStart"))
    refused(call("ncclGroupSimulateEnd", 0), USAGE, "ncclGroupSimulateEnd is not emulated")
    refused(call("ncclGroupEnd"), USAGE, "not in a group call")


def test_what_is_not_emulated_says_so_by_name() -> None:
    (rank,) = run(not_emulated, 1)
    for name in ("ncclRedOpCreatePreMulSum", "ncclRedOpDestroy", "ncclCommShrink"):
        assert f"emulated: {name} is not emulated" in rank.err


def fp8(world: World) -> None:
    comm = alone()
    array = Array(np.ones(8, np.uint8))
    check(comm.broadcast(array.pointer, array.pointer, 4, 9))
    refused(comm.broadcast(array.pointer, array.pointer, 4, 10), ARGUMENT, "invalid type 10")


def test_older_versions_have_no_fp8() -> None:
    run(fp8, 1, EMULATED_NCCL_VERSION="22304")


def error_strings(world: World) -> list[str]:
    text = nccl().ncclGetErrorString
    return [text(code).decode() for code in range(9)]


def test_texts_of_the_codes() -> None:
    (rank,) = run(error_strings, 1)
    assert rank.result == [
        "no error",
        "unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
        "unhandled system error (run with NCCL_DEBUG=INFO for details)",
        "internal error - please report this issue to the NCCL developers",
        "invalid argument (run with NCCL_DEBUG=WARN for details)",
        "invalid usage (run with NCCL_DEBUG=WARN for details)",
        "remote process exited or there was a network error",
        "NCCL operation in progress",
        "unknown result code",
    ]


# Registration


def registered(world: World) -> None:
    """Register memory, which changes nothing; all ranks create windows."""
    comm = create(world)
    pointer = ctypes.c_void_p()
    check(call("ncclMemAlloc", ctypes.byref(pointer), 4096))
    memory = pointer.value or 0
    handle, window = ctypes.c_void_p(), ctypes.c_void_p()
    check(call("ncclCommRegister", comm.handle, memory, 4096, ctypes.byref(handle)))
    flags = ctypes.c_int(1)
    arguments = (comm.handle, memory, 4096, ctypes.byref(window), flags)
    if world.rank:
        world.hear("waits")
    window_made = Started(lambda: call("ncclCommWindowRegister", *arguments))
    if not world.rank:
        assert window_made.hangs()
        world.say("waits")
    assert window_made.returned() == Result.SUCCESS
    assert handle.value
    assert window.value
    ok("cudaMemset", memory, ctypes.c_int(0), 4096)
    ok("cudaDeviceSynchronize")
    check(comm.all_reduce(memory, memory, 1024, np.float32))
    comm.synchronize()
    check(call("ncclCommWindowDeregister", comm.handle, window))
    check(call("ncclCommDeregister", comm.handle, handle))
    refused(call("ncclCommDeregister", comm.handle, handle), USAGE, "Could not find handle")
    words = "is not a valid pointer"
    given = (comm.handle, 4096, 64, ctypes.byref(handle))
    refused(call("ncclCommRegister", *given), ARGUMENT, words)
    given = (comm.handle, 4096, 64, ctypes.byref(window), flags)
    refused(call("ncclCommWindowRegister", *given), ARGUMENT, "invalid pointer")
    check(call("ncclMemFree", memory))
    check(comm.destroy())


def test_registered_memory() -> None:
    run(registered, 2)
