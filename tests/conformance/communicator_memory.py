"""Cases of arrays in the communicator's own memory, in other memory, and in both.

Cases as in `tests.conformance.communicator`; the lengths are the limits at which ranks that share
memory change the algorithm.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ncclkv.comm.base import Communicator
from ncclkv.comm.shm.staging import HALF_BYTES, INLINE_BYTES
from ncclkv.comm.types import Work
from tests.conformance.capabilities import current_buffers
from tests.conformance.communicator import (
    COMPLEX,
    FLOATS,
    INTEGERS,
    Array,
    case,
    data,
    expected,
    identical,
    offered,
    summed,
)

F32 = np.dtype(np.float32)
KINDS = ("own", "plain", "mixed")
STALE = 77
"""Step whose data are in an array before anything is received."""

Started = tuple[Work, Callable[[], None]]
"""A launched collective, and its check after completion."""


def buffer(comm: Communicator, values: Array, kind: str) -> Any:
    """Return an array in the communicator's memory, in other memory, or in either, by rank."""
    own = kind == "own" or (kind == "mixed" and comm.rank % 2 == 0)
    if not own:
        return current_buffers().put(values)
    array = comm.allocate(values.nbytes).view(values.dtype)
    current_buffers().write(array, values)
    return array


def gathered(comm: Communicator, part: int, dtype: np.dtype[Any], step: int) -> Array:
    """Return every rank's data, one after the other."""
    return np.concatenate([data(rank, part, dtype, step) for rank in range(comm.size)])


def scatter(
    comm: Communicator,
    part: int,
    kind: str,
    in_place: bool,
    step: int = 0,
    dtype: np.dtype[Any] = F32,
    op: str = "sum",
) -> Started:
    """Start a reduce_scatter of this rank's data."""
    count, own = part * comm.size, slice(part * comm.rank, part * (comm.rank + 1))
    send = buffer(comm, data(comm.rank, count, dtype, step), kind)
    receive = send[own] if in_place else buffer(comm, data(comm.rank, part, dtype, STALE), kind)
    what = f"rank {comm.rank}: {op} of {comm.size} x {part} {dtype}, {kind}, in place {in_place}"

    def check() -> None:
        wanted = expected(comm, count, dtype, op, step)[own]
        summed(comm, current_buffers().get(receive), wanted, what, op)
        current_buffers().write(send, 0)

    return comm.reduce_scatter(send, receive, op), check


def gather(
    comm: Communicator,
    part: int,
    kind: str,
    in_place: bool,
    step: int = 0,
    dtype: np.dtype[Any] = F32,
) -> Started:
    """Start an allgather of this rank's data."""
    receive = buffer(comm, data(comm.rank, part * comm.size, dtype, STALE), kind)
    mine = data(comm.rank, part, dtype, step)
    if in_place:
        send = receive[part * comm.rank : part * (comm.rank + 1)]
        current_buffers().write(send, mine)
    else:
        send = buffer(comm, mine, kind)
    what = f"rank {comm.rank}: allgather of {comm.size} x {part} {dtype}, {kind}, {in_place}"

    def check() -> None:
        identical(current_buffers().get(receive), gathered(comm, part, dtype, step), what)
        current_buffers().write(send, 0)

    return comm.allgather(send, receive), check


def cast(comm: Communicator, count: int, kind: str, root: int, step: int = 0) -> Started:
    """Start a broadcast of the root's data."""
    array = buffer(comm, data(root, count, F32, step if comm.rank == root else STALE), kind)
    what = f"rank {comm.rank}: broadcast of {count} from {root}, {kind}"

    def check() -> None:
        identical(current_buffers().get(array), data(root, count, F32, step), what)
        current_buffers().write(array, 0)

    return comm.broadcast(array, root), check


def add(comm: Communicator, count: int, kind: str, in_place: bool, step: int = 0) -> Started:
    """Start a sum of this rank's data."""
    send = buffer(comm, data(comm.rank, count, F32, step), kind)
    receive = send if in_place else buffer(comm, data(comm.rank, count, F32, STALE), kind)

    def check() -> None:
        what = f"rank {comm.rank}: sum of {count}, {kind}, in place {in_place}"
        summed(comm, current_buffers().get(receive), expected(comm, count, F32, "sum", step), what)
        current_buffers().write(send, 0)

    return comm.allreduce(send, receive), check


def finish(started: Started) -> None:
    """Wait for a collective, and check it."""
    work, check = started
    work.wait()
    check()


def edges(rows: int) -> list[int]:
    """Return columns for which one chunk holds all rows, almost all, or a third of the rows."""
    inline, halves = INLINE_BYTES // F32.itemsize, 2 * HALF_BYTES // F32.itemsize
    return [inline // rows, inline // rows + 1, halves // rows + 5]


@case
def reduce_scatter_in_any_memory(comm: Communicator) -> None:
    for part in edges(comm.size):
        for kind in KINDS:
            for in_place in (False, True):
                finish(scatter(comm, part, kind, in_place))


@case
def allgather_in_any_memory(comm: Communicator) -> None:
    # The sent array is a part, and the received array has all parts: the longest is for few ranks.
    for part in edges(1)[: 3 if comm.size < 5 else 2]:
        for kind in KINDS:
            for in_place in (False, True):
                finish(gather(comm, part, kind, in_place))


@case
def broadcast_in_any_memory(comm: Communicator) -> None:
    for count in edges(1):
        for kind in KINDS:
            for root in {0, comm.size // 2, comm.size - 1}:
                finish(cast(comm, count, kind, root))


@case
def parts_of_every_dtype_and_op(comm: Communicator) -> None:
    for dtype in [*INTEGERS, *FLOATS, *COMPLEX]:
        # Arrays in shared memory and through copies, and all parts in one short copy.
        for part in (INLINE_BYTES // dtype.itemsize + 1, 7):
            for op in offered(dtype):
                if not current_buffers().capabilities.refused(dtype, op):
                    finish(scatter(comm, part, "mixed", in_place=True, dtype=dtype, op=op))
                    finish(scatter(comm, part, "own", in_place=False, dtype=dtype, op=op))
            finish(gather(comm, part, "mixed", in_place=True, dtype=dtype))


def variety(comm: Communicator, step: int) -> Iterator[Started]:
    """Launch one collective of each kind, short and long, in memory that changes with the step."""
    kind, root, in_place = KINDS[step % 3], step % comm.size, step % 2 == 0
    yield scatter(comm, 3, kind, in_place, step)
    yield gather(comm, 9000, kind, in_place, step)
    yield cast(comm, 50_000, kind, root, step)
    yield add(comm, 20_000, kind, in_place, step)
    yield cast(comm, 10, kind, root, step)
    yield scatter(comm, 7001, kind, in_place, step)
    yield gather(comm, 11, kind, in_place, step)
    work = comm.barrier()
    yield work, lambda: None


@case
def different_calls_are_waited_for_in_any_order(comm: Communicator) -> None:
    for step in range(6):
        flying = list(variety(comm, step))
        for index in np.random.default_rng([step, comm.rank]).permutation(len(flying)):
            finish(flying[index])


@case
def different_calls_at_different_paces_get_data_of_their_step(comm: Communicator) -> None:
    rng = np.random.default_rng(comm.rank)
    for step in range(12):
        for started in variety(comm, step):
            time.sleep(rng.random() * 0.002 * (rng.random() < 0.3))
            finish(started)
    waiting: list[Started] = []
    for step in range(12):
        waiting += variety(comm, step)
        time.sleep(rng.random() * 0.003)
        while len(waiting) > 12:
            finish(waiting.pop(0))
    for started in waiting:
        finish(started)
