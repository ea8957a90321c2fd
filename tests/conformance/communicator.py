"""Cases that every communicator must pass, over any transport.

A case is a function of an open `Communicator`, called by all its ranks at the same time; `here`
makes the buffers. More cases are in the files beside this one.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from ncclkv.comm.base import Communicator
from ncclkv.comm.messages.channel import SHORT_BYTES, SLICE_BYTES
from ncclkv.comm.types import OPS
from ncclkv.errors import NotSupported
from tests.conformance.capabilities import current_buffers, near

Array = NDArray[Any]
Body = Callable[[Communicator], None]

CASES: dict[str, Body] = {}

INTEGERS = [np.dtype(name) for name in ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8")]
FLOATS = [np.dtype(name) for name in (np.float16, ml_dtypes.bfloat16, np.float32, np.float64)]
COMPLEX = [np.dtype(np.complex64), np.dtype(np.complex128)]
BOOL = np.dtype(np.bool_)

POISON = 0xA5
GUARD = 256
PERIOD = 9973


def case(body: Body) -> Body:
    """Add a case to `CASES`."""
    CASES[body.__name__] = body
    return body


def data(rank: int, count: int, dtype: np.dtype[Any], step: int = 0) -> Array:
    """Return a rank's contribution at a step; every rank can compute it.

    The numbers repeat after a prime number of elements, which no slice or chunk is a multiple of.
    """
    return np.resize(_block(rank, min(count, PERIOD), dtype, step), count)


@lru_cache(256)
def _block(rank: int, count: int, dtype: np.dtype[Any], step: int) -> Array:
    """Return numbers of a rank, a step and a dtype: extreme integers, and floats that round."""
    rng = np.random.default_rng([rank, step, count])
    if dtype == BOOL:
        return rng.random(count) < 0.4
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return rng.integers(limits.min, limits.max, count, dtype, endpoint=True)
    if dtype.kind == "c":
        # Whole numbers: NumPy does not promise the last bit of a complex product.
        parts = rng.integers(-4, 5, (2, count))
        return (parts[0] + 1j * parts[1]).astype(dtype)
    return (rng.standard_normal(count) + np.sign(rng.random(count) - 0.5)).astype(dtype)


def reduced(parts: list[Array], op: str) -> Array:
    """Reduce the parts in rank order, as `ncclkv.comm.base` documents."""
    dtype = parts[0].dtype
    wide = np.dtype(np.float32) if dtype.itemsize == 2 and dtype.kind not in "iu" else dtype
    if op == "avg" and dtype.kind in "iu":
        wide = np.dtype(np.int64 if dtype.kind == "i" else np.uint64)
    step = {"max": np.maximum, "min": np.minimum, "prod": np.multiply}.get(op, np.add)
    total = parts[0].astype(wide)
    for part in parts[1:]:
        total = step(total, part.astype(wide))
    if op == "avg" and dtype.kind in "iu":
        count = wide.type(len(parts))  # Floor division goes down, and not toward zero.
        return (total // count + ((total < 0) & (total % count != 0))).astype(dtype)
    if op == "avg":
        # Part by part, since NumPy multiplies a complex number by a rounded 1 / n.
        total = (total.view(total.real.dtype) / total.real.dtype.type(len(parts))).view(wide)
    return total.astype(dtype)


def expected(comm: Communicator, count: int, dtype: np.dtype[Any], op: str, step: int = 0) -> Array:
    """Return the reduction of every rank's `data`, which repeats as these do."""
    return np.resize(_reduced_block(comm.size, min(count, PERIOD), dtype, op, step), count)


@lru_cache(256)
def _reduced_block(size: int, count: int, dtype: np.dtype[Any], op: str, step: int) -> Array:
    return reduced([_block(rank, count, dtype, step) for rank in range(size)], op)


def _bytes(array: Array) -> Array:
    """Return the bytes of an array, which is copied only if they do not lie in one piece."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def identical(got: Array, wanted: Array, what: str) -> None:
    """Fail unless two arrays are the same bits."""
    __tracebackhide__ = True
    if not np.array_equal(_bytes(got), _bytes(wanted)):
        differ = np.flatnonzero(got != wanted)
        where = differ[:5] if differ.size else "only in the sign of a zero or in a NaN"
        raise AssertionError(
            f"{what}: differs at {where}: got {got[differ[:5]]}, expected {wanted[differ[:5]]}"
        )


def summed(comm: Communicator, got: Array, wanted: Array, what: str, op: str = "sum") -> None:
    """Fail unless `got` is the sum `wanted`, as exactly as the communicator capabilities."""
    __tracebackhide__ = True
    capabilities = current_buffers().capabilities
    rounded = capabilities.rounded_averages and op == "avg" and wanted.dtype.itemsize == 2
    if (capabilities.rank_order and not rounded) or not near(got, wanted, comm.size):
        identical(got, wanted, what)


class Memory:
    """A poisoned buffer between two guards, in the communicator's own memory."""

    def __init__(self, comm: Communicator, count: int, dtype: np.dtype[Any]) -> None:
        nbytes = count * dtype.itemsize
        self._space = comm.allocate(nbytes + 2 * GUARD)
        current_buffers().write(self._space, POISON)
        self._end = GUARD + nbytes
        self.buffer = self._space[GUARD : self._end].view(dtype)

    def check_guards(self, what: str) -> None:
        """Fail if something was written outside the buffer."""
        space = current_buffers().get(self._space)
        outside = np.concatenate([space[:GUARD], space[self._end :]])
        assert (outside == POISON).all(), f"{what}: wrote outside the buffer"


def check_reduction(
    comm: Communicator,
    count: int,
    dtype: np.dtype[Any],
    op: str = "sum",
    root: int | None = None,
    in_place: bool = False,
) -> None:
    """Reduce every rank's `data`, and compare on the ranks that receive."""
    what = (
        f"rank {comm.rank} of {comm.size}: {op} of {count} {dtype} to {root}, in place {in_place}"
    )
    place, memory = current_buffers(), Memory(comm, count, dtype)
    send = receive = memory.buffer
    if in_place:
        place.write(send, data(comm.rank, count, dtype))
    else:
        send = place.put(data(comm.rank, count, dtype))
    receives = root is None or root == comm.rank
    if root is None:
        comm.allreduce(send, receive, op).wait()
    else:
        comm.reduce(send, receive, op, root).wait()
    if receives:
        summed(comm, place.get(receive), expected(comm, count, dtype, op), what, op)
    if not in_place:
        identical(place.get(send), data(comm.rank, count, dtype), f"{what}: the sent array")
    memory.check_guards(what)


def offered(dtype: np.dtype[Any]) -> Iterator[str]:
    """Return the ops that a dtype has."""
    for op in OPS:
        if not (dtype.kind == "c" and op in ("max", "min")) and not (dtype == BOOL and op == "avg"):
            yield op


def lengths(size: int, itemsize: int) -> list[int]:
    """Return lengths around which algorithms change: none, one each, short, a chunk, chunks."""
    short = SHORT_BYTES // itemsize
    chunk = SLICE_BYTES // itemsize * size
    few = {0, 1, 2, size - 1, size, size + 1, short - 1, short, short + 1}
    return sorted(few | {chunk - 1, chunk, chunk + 1, 2 * chunk + size + 1})


@case
def every_op_of_every_dtype(comm: Communicator) -> None:
    for dtype in [BOOL, *INTEGERS, *FLOATS, *COMPLEX]:
        for op in offered(dtype):
            if words := current_buffers().capabilities.refused(dtype, op):
                with pytest.raises(NotSupported, match=words):
                    check_reduction(comm, 37, dtype, op)
                continue
            check_reduction(comm, 37, dtype, op)
            check_reduction(comm, SHORT_BYTES // dtype.itemsize + 3, dtype, op, in_place=True)


@case
def every_length_to_all(comm: Communicator) -> None:
    for count in lengths(comm.size, 4):
        for in_place in (False, True):
            check_reduction(comm, count, np.dtype(np.float32), in_place=in_place)


@case
def every_length_to_every_root(comm: Communicator) -> None:
    for count in lengths(comm.size, 8):
        # Long arrays are reduced to the last root alone: they take the most time and differ the
        # least.
        long = count * 8 > 4 * SHORT_BYTES
        for root in range(comm.size - 1 if long else 0, comm.size):
            for in_place in (False, True):
                check_reduction(comm, count, np.dtype(np.float64), "sum", root, in_place)


@case
def sixteen_bit_sums_are_rounded_once(comm: Communicator) -> None:
    for dtype, one in zip(FLOATS[:2], (2048, 256), strict=True):
        # In 16 bits one more than `one` is `one` again, so that rounding at each step adds nothing.
        for count in (3, SHORT_BYTES):
            send = current_buffers().put(np.full(count, one if comm.rank == 0 else 1, dtype))
            comm.allreduce(send, send).wait()
            wanted = np.full(count, np.float32(one + comm.size - 1)).astype(dtype)
            summed(comm, current_buffers().get(send), wanted, f"rank {comm.rank}: {dtype}")


@case
def averages_of_integers_go_toward_zero(comm: Communicator) -> None:
    for count in (4, SHORT_BYTES):
        values = np.zeros(count, np.int8)
        values[:4] = [-1, 1, 100, -128] if comm.rank == 0 else [0, 0, 100, 0]
        send = current_buffers().put(values)
        comm.allreduce(send, send, "avg").wait()
        wanted = [*(int(x / comm.size) for x in (-1, 1)), 100, int(-128 / comm.size)]
        assert current_buffers().get(send)[:4].tolist() == wanted


@case
def averages_of_equal_floats_are_exact(comm: Communicator) -> None:
    """Divide a sum: the sum of three products of 7 with ``1 / 3`` is not 7."""
    for dtype in (np.float32, np.float64, np.complex64):
        for count in (5, SHORT_BYTES):
            send = current_buffers().put(np.full(count, 7, dtype))
            comm.allreduce(send, send, "avg").wait()
            got = current_buffers().get(send)
            assert (got == 7).all(), (dtype, got[0])


@case
def nan_wins_over_numbers(comm: Communicator) -> None:
    for dtype in FLOATS:
        for op in ("sum", "max", "min") if current_buffers().capabilities.nan_wins else ("sum",):
            values = np.ones(SHORT_BYTES, dtype)
            if comm.rank == comm.size - 1:
                values[7] = np.nan
            send = current_buffers().put(values)
            comm.allreduce(send, send, op).wait()
            assert np.flatnonzero(np.isnan(current_buffers().get(send))).tolist() == [7], (
                dtype,
                op,
            )


@case
def sums_have_equal_bits_on_all_ranks(comm: Communicator) -> None:
    for count in (1000, 300_000):
        send = current_buffers().put(data(comm.rank, count, np.dtype(np.float32), 5))
        comm.allreduce(send, send).wait()
        got = current_buffers().get(send)
        digests = comm.control.allgather(zlib.crc32(got.tobytes()))
        assert len(set(digests)) == 1, digests
        summed(comm, got, expected(comm, count, send.dtype, "sum", 5), f"rank {comm.rank}")


@case
def broadcast_from_every_root(comm: Communicator) -> None:
    for count in lengths(comm.size, 1):
        long = count > 4 * SHORT_BYTES
        for root in range(comm.size - 1 if long else 0, comm.size):
            what = f"rank {comm.rank}: broadcast of {count} bytes from {root}"
            memory = Memory(comm, count, np.dtype(np.uint8))
            if comm.rank == root:
                current_buffers().write(memory.buffer, data(root, count, np.dtype(np.uint8)))
            comm.broadcast(memory.buffer, root).wait()
            identical(
                current_buffers().get(memory.buffer), data(root, count, np.dtype(np.uint8)), what
            )
            memory.check_guards(what)


@case
def broadcast_of_every_dtype(comm: Communicator) -> None:
    for dtype in [BOOL, *INTEGERS, *FLOATS, *COMPLEX]:
        root = dtype.itemsize % comm.size
        memory = Memory(comm, 100, dtype)
        if comm.rank == root:
            current_buffers().write(memory.buffer, data(root, 100, dtype))
        comm.broadcast(memory.buffer, root).wait()
        identical(
            current_buffers().get(memory.buffer),
            data(root, 100, dtype),
            f"rank {comm.rank}: {dtype}",
        )


@case
def reduce_scatter_in_and_out_of_place(comm: Communicator) -> None:
    for part in (0, 1, 3, SHORT_BYTES, SLICE_BYTES // 8 + 1):
        count, dtype = part * comm.size, np.dtype(np.float64)
        own = slice(part * comm.rank, part * (comm.rank + 1))
        for op in ("sum", "avg", "max"):
            wanted = expected(comm, count, dtype, op)[own]
            memory = Memory(comm, part, dtype)
            what = f"rank {comm.rank}: reduce_scatter of {part}"
            whole = current_buffers().put(data(comm.rank, count, dtype))
            comm.reduce_scatter(whole, memory.buffer, op).wait()
            summed(comm, current_buffers().get(memory.buffer), wanted, what)
            memory.check_guards(what)
            comm.reduce_scatter(whole, whole[own], op).wait()
            summed(comm, current_buffers().get(whole[own]), wanted, f"{what} in place")


@case
def allgather_in_and_out_of_place(comm: Communicator) -> None:
    for part in (0, 1, 3, SHORT_BYTES, SLICE_BYTES // 2 + 1):
        dtype = np.dtype(np.int16)
        wanted = np.concatenate([data(rank, part, dtype) for rank in range(comm.size)])
        own = slice(part * comm.rank, part * (comm.rank + 1))
        memory = Memory(comm, part * comm.size, dtype)
        comm.allgather(current_buffers().put(data(comm.rank, part, dtype)), memory.buffer).wait()
        identical(
            current_buffers().get(memory.buffer), wanted, f"rank {comm.rank}: allgather of {part}"
        )
        memory.check_guards(f"rank {comm.rank}: allgather of {part}")
        memory = Memory(comm, part * comm.size, dtype)
        current_buffers().write(memory.buffer[own], data(comm.rank, part, dtype))
        comm.allgather(memory.buffer[own], memory.buffer).wait()
        got = current_buffers().get(memory.buffer)
        identical(got, wanted, f"rank {comm.rank}: allgather in place of {part}")
