"""The emulated NCCL through ncclkv's binding, with blocking and non-blocking communicators."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

from ncclkv.comm.nccl.binding import DTYPES, OPS, Binding
from ncclkv.comm.nccl.ctypes_binding import CtypesBinding
from ncclkv.errors import CommAborted, LaunchError
from tests.nccl.emulated.calls import made, ok
from tests.nccl.emulated.collectives import Array
from tests.nccl.emulated.worlds import World, run

EACH_KIND = pytest.mark.parametrize("blocking", [True, False])


def binding(world: World, blocking: bool) -> CtypesBinding:
    """Return a binding for this rank's device, which is this thread's current one, too."""
    ok("cudaSetDevice", ctypes.c_int(world.rank))
    return CtypesBinding(world.rank, 20.0, blocking=blocking)


def create(world: World, chosen: Binding) -> Any:
    id = world.tell(chosen.unique_id() if world.rank == 0 else None)[0]
    return chosen.create(world.size, id, world.rank, lambda: None)


def everything(world: World, blocking: bool) -> list[list[float]]:
    """Make each call of a binding once; return the results."""
    chosen = binding(world, blocking)
    assert chosen.version() == 22809
    comm = create(world, chosen)
    assert bool(chosen.uncaptured) != blocking
    size, rank = world.size, world.rank
    stream = made("cudaStreamCreateWithFlags", 1)
    dtype, total = DTYPES["float32"], OPS["sum"]
    results = []

    def done(array: Array) -> None:
        ok("cudaStreamSynchronize", stream)
        results.append([float(value) for value in array.get()])

    room = Array(np.zeros(2 * size, np.uint8))
    peers = [peer for peer in range(size) if peer != rank]
    chosen.connect(comm, peers, (room.pointer, room.at(1)), stream)
    own = Array(np.full(2, rank + 1, np.float32))
    all_of = Array(np.zeros(2 * size, np.float32))
    chosen.all_gather(comm, own.pointer, all_of.pointer, 2, dtype, stream)
    done(all_of)
    part = Array(np.zeros(2, np.float32))
    chosen.reduce_scatter(comm, all_of.pointer, part.pointer, 2, dtype, total, stream)
    done(part)
    chosen.all_reduce(comm, own.pointer, own.pointer, 2, dtype, OPS["avg"], stream)
    done(own)
    chosen.reduce(comm, own.pointer, part.pointer, 2, dtype, OPS["max"], 1, stream)
    chosen.broadcast(comm, part.pointer, part.pointer, 2, dtype, 1, stream)
    done(part)
    chosen.group_start()
    chosen.send(comm, part.pointer, 1, dtype, (rank + 1) % size, stream)
    chosen.receive(comm, own.pointer, 1, dtype, (rank - 1) % size, stream)
    chosen.group_end()
    done(own)
    assert chosen.async_error(comm) is None
    chosen.destroy(comm)
    return results


@EACH_KIND
def test_all_calls_of_a_binding(blocking: bool) -> None:
    for rank, ended in enumerate(run(everything, 3, blocking, EMULATED_NCCL_VERSION="22809")):
        own = float(rank + 1)
        assert ended.result == [
            [1.0, 1.0, 2.0, 2.0, 3.0, 3.0],
            [3 * own, 3 * own],
            [2.0, 2.0],
            [2.0, 2.0],
            [2.0, 2.0],
        ]


def refused(world: World, blocking: bool) -> str:
    chosen = binding(world, blocking)
    with pytest.raises(LaunchError) as failed:
        create(world, chosen)
    return str(failed.value)


@EACH_KIND
def test_a_refused_creation_in_the_words_of_a_binding(blocking: bool) -> None:
    faults = "function=ncclCommInitRankConfig,do=fail:2"
    for rank in run(refused, 2, blocking, EMULATED_NCCL_FAULTS=faults):
        assert "ncclCommInitRankConfig failed: ncclSystemError" in rank.result
        assert "as EMULATED_NCCL_FAULTS asks" in rank.result


def wrong_call(world: World, blocking: bool) -> str:
    chosen = binding(world, blocking)
    comm = create(world, chosen)
    with pytest.raises(CommAborted) as failed:
        chosen.all_reduce(comm, 0, 0, 4, 7, 0, 0)
    chosen.abort(comm)
    return str(failed.value)


@EACH_KIND
def test_a_refused_call_in_the_words_of_a_binding(blocking: bool) -> None:
    for rank in run(wrong_call, 1, blocking):
        assert "ncclAllReduce failed: ncclInvalidArgument" in rank.result
        assert "AllReduce : sendbuff (nil) is not a valid pointer" in rank.result
