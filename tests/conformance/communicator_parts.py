"""Cases of sums to owners, of allgatherv and of all_to_all, with parts of any length.

Cases as in `tests.conformance.communicator`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from ncclkv.comm.base import Communicator
from ncclkv.comm.destinations import EVERYONE, Owners, Root
from ncclkv.comm.messages.channel import SHORT_BYTES, SLICE_BYTES
from ncclkv.comm.shm.staging import HALF_BYTES, INLINE_BYTES
from ncclkv.errors import NotSupported, UsageError
from tests.conformance.capabilities import current_buffers
from tests.conformance.communicator import (
    BOOL,
    COMPLEX,
    FLOATS,
    INTEGERS,
    Array,
    Memory,
    case,
    data,
    expected,
    identical,
    offered,
    summed,
)
from tests.conformance.communicator_memory import KINDS, STALE, Started, buffer, finish

F32 = np.dtype(np.float32)
EVERY_DTYPE = [BOOL, *INTEGERS, *FLOATS, *COMPLEX]


def ragged(size: int, longest: int) -> list[int]:
    """Return a length for each rank: the longest, about a third, one element, none, and again."""
    return [(longest, longest // 3, 1, 0)[rank % 4] for rank in range(size)]


def ends(counts: Sequence[int]) -> list[int]:
    """Return the bounds of parts of these lengths."""
    return [sum(counts[:rank]) for rank in range(len(counts) + 1)]


def divisions(size: int, longest: int) -> list[list[int]]:
    """Return lengths of parts: ragged, ragged backwards, equal, and all at the last rank."""
    one_owner = [0] * (size - 1) + [longest]
    return [ragged(size, longest), ragged(size, longest)[::-1], [longest // 2] * size, one_owner]


def to_owners(
    comm: Communicator,
    counts: Sequence[int],
    kind: str = "plain",
    in_place: bool = False,
    step: int = 0,
    dtype: np.dtype[Any] = F32,
    op: str = "sum",
) -> Started:
    """Start a sum of this rank's data, of which every rank receives a part."""
    total, bounds = sum(counts), ends(counts)
    lo, hi = bounds[comm.rank : comm.rank + 2]
    stale = data(comm.rank, total, dtype, STALE)
    send = buffer(comm, data(comm.rank, total, dtype, step), kind)
    receive = send if in_place else buffer(comm, stale, kind)
    ready, seen = current_buffers().put(stale[lo:hi]), np.zeros(total, np.int8)
    what = f"rank {comm.rank}: {op} of {counts} {dtype} to owners, {kind}, in place {in_place}"

    def apply(first: int, stop: int) -> None:
        assert lo <= first < stop <= hi, f"{what}: apply of {first} to {stop}"
        seen[first:stop] += 1
        current_buffers().copy(receive[first:stop], into=ready[first - lo : stop - lo])

    def check() -> None:
        wanted = expected(comm, total, dtype, op, step)[lo:hi]
        summed(comm, current_buffers().get(receive)[lo:hi], wanted, what, op)
        summed(comm, current_buffers().get(ready), wanted, f"{what}, at apply", op)
        own = (np.arange(total) >= lo) & (np.arange(total) < hi)
        assert (seen == own).all(), f"{what}: apply of {np.flatnonzero(seen != own)[:5]}"
        others = data(comm.rank, total, dtype, step if in_place else STALE)
        identical(
            current_buffers().get(receive)[~own], others[~own], f"{what}: another rank's part"
        )
        current_buffers().write(send, 0)

    return comm.reduction(send, receive, op, to=Owners(bounds)).launch(apply), check


def gather(
    comm: Communicator,
    counts: Sequence[int],
    kind: str = "plain",
    in_place: bool = False,
    step: int = 0,
    dtype: np.dtype[Any] = F32,
) -> Started:
    """Start an allgatherv of this rank's data."""
    parts = [data(rank, count, dtype, step) for rank, count in enumerate(counts)]
    lo, hi = ends(counts)[comm.rank : comm.rank + 2]
    receive = buffer(comm, data(comm.rank, sum(counts), dtype, STALE), kind)
    send = receive[lo:hi] if in_place else buffer(comm, parts[comm.rank], kind)
    if in_place:
        current_buffers().write(send, parts[comm.rank])
    wanted = np.concatenate(parts)
    what = f"rank {comm.rank}: allgatherv of {counts} {dtype}, {kind}, in place {in_place}"

    def check() -> None:
        identical(current_buffers().get(receive), wanted, what)
        current_buffers().write(send, 0)

    return comm.allgatherv(send, receive, counts), check


def exchange(
    comm: Communicator,
    length: Callable[[int, int], int],
    kind: str = "plain",
    in_place: bool = False,
    step: int = 0,
    dtype: np.dtype[Any] = F32,
) -> Started:
    """Start an all_to_all of ``length(source, target)`` elements."""

    def message(source: int, target: int) -> Array:
        return data(source, length(source, target), dtype, step + 100 * target)

    ranks = range(comm.size)
    send = [buffer(comm, message(comm.rank, peer), kind) for peer in ranks]
    wanted = [message(peer, comm.rank) for peer in ranks]
    receive = [buffer(comm, data(9, each.size, dtype, STALE), kind) for each in wanted]
    if in_place:
        receive[comm.rank] = send[comm.rank]
    what = f"rank {comm.rank}: all_to_all of {dtype}, {kind}, in place {in_place}, step {step}"

    def check() -> None:
        for peer in ranks:
            identical(current_buffers().get(receive[peer]), wanted[peer], f"{what} from {peer}")
            if not (in_place and peer == comm.rank):
                identical(
                    current_buffers().get(send[peer]), message(comm.rank, peer), f"{what} to {peer}"
                )
        for each in send:
            current_buffers().write(each, 0)

    return comm.all_to_all(send, receive), check


def uneven(longest: int) -> Callable[[int, int], int]:
    """Return lengths of messages: the longest, about a third, one element, none, and again."""
    return lambda source, target: (longest, longest // 3, 1, 0)[(source + 2 * target) % 4]


def borders() -> list[int]:
    """Return numbers of float32 around which algorithms change, up to two chunks or pieces."""
    short, inline = SHORT_BYTES // 4, INLINE_BYTES // 4
    return [0, 3, short + 1, inline + 1, HALF_BYTES // 4 + 5, 2 * SLICE_BYTES // 4 + 7]


@case
def owners_receive_their_parts(comm: Communicator) -> None:
    for turn, longest in enumerate(borders()):
        # Long arrays take the most time and differ the least.
        some = divisions(comm.size, longest)[: 1 if longest > INLINE_BYTES else 4]
        for index, counts in enumerate(some, turn):
            finish(to_owners(comm, counts, KINDS[index % 3], in_place=False))
            finish(to_owners(comm, counts, KINDS[(index + 1) % 3], in_place=True))


@case
def owners_of_every_dtype_and_op(comm: Communicator) -> None:
    for dtype in EVERY_DTYPE:
        for op in offered(dtype):
            if words := current_buffers().capabilities.refused(dtype, op):
                with pytest.raises(NotSupported, match=words):
                    to_owners(comm, [5] * comm.size, dtype=dtype, op=op)
                continue
            finish(to_owners(comm, [7] * comm.size, "mixed", dtype=dtype, op=op))
        if not current_buffers().capabilities.refused(dtype, "sum"):
            long = ragged(comm.size, INLINE_BYTES // dtype.itemsize + 1)
            finish(to_owners(comm, long, "mixed", dtype=dtype))


@case
def equal_parts_are_a_reduce_scatter(comm: Communicator) -> None:
    for part in (3, INLINE_BYTES):
        send = current_buffers().put(data(comm.rank, part * comm.size, F32))
        one, other = (current_buffers().put(np.zeros(part * comm.size, F32)) for _ in range(2))
        own = slice(part * comm.rank, part * (comm.rank + 1))
        works = [
            comm.reduce_scatter(send, one[own]),
            comm.reduction(send, other, to=Owners(ends([part] * comm.size))).launch(),
        ]
        for work in works:
            work.wait()
        identical(current_buffers().get(one), current_buffers().get(other), f"rank {comm.rank}")


@case
def a_prepared_sum_to_owners_is_launched_again(comm: Communicator) -> None:
    counts = ragged(comm.size, 1000)
    lo, hi = ends(counts)[comm.rank : comm.rank + 2]
    send, receive = (current_buffers().put(np.zeros(sum(counts), F32)) for _ in range(2))
    collective = comm.reduction(send, receive, to=Owners(ends(counts)))
    collective.label = "key 'w'"
    for step in range(4):
        current_buffers().write(send, data(comm.rank, sum(counts), F32, step))
        work = collective.launch()
        assert work.label == "key 'w'"
        work.wait()
        wanted = expected(comm, sum(counts), F32, "sum", step)[lo:hi]
        summed(
            comm, current_buffers().get(receive)[lo:hi], wanted, f"rank {comm.rank}, step {step}"
        )


@case
def allgatherv_of_ragged_parts(comm: Communicator) -> None:
    for turn, longest in enumerate(borders()):
        some = divisions(comm.size, longest)[: 1 if longest > INLINE_BYTES else 4]
        for index, counts in enumerate(some, turn):
            finish(gather(comm, counts, KINDS[index % 3], in_place=False))
            finish(gather(comm, counts, KINDS[(index + 1) % 3], in_place=True))


@case
def all_to_all_of_ragged_messages(comm: Communicator) -> None:
    for index, longest in enumerate(borders()):
        finish(exchange(comm, uneven(longest), KINDS[index % 3], in_place=index % 2 == 0))
    finish(exchange(comm, lambda source, target: 1000, in_place=True))


@case
def parts_and_messages_of_every_dtype(comm: Communicator) -> None:
    for dtype in EVERY_DTYPE:
        finish(gather(comm, ragged(comm.size, 7), "mixed", dtype=dtype))
        finish(exchange(comm, uneven(7), "mixed", dtype=dtype))
        if dtype.itemsize in (2, 16):
            longest = INLINE_BYTES // dtype.itemsize + 1
            finish(gather(comm, ragged(comm.size, longest), "mixed", dtype=dtype))
            finish(exchange(comm, uneven(longest), "mixed", dtype=dtype))


@case
def one_buffer_is_sent_to_all(comm: Communicator) -> None:
    send = current_buffers().put(data(comm.rank, 500, F32))
    receive = [current_buffers().put(np.zeros(500, F32)) for _ in range(comm.size)]
    comm.all_to_all([send] * comm.size, receive).wait()
    for peer in range(comm.size):
        identical(current_buffers().get(receive[peer]), data(peer, 500, F32), f"rank {comm.rank}")


@case
def exchanges_of_several_steps_are_waited_for_in_any_order(comm: Communicator) -> None:
    for step in range(4):
        flying: list[Started] = []
        for longest in (5, 30_000):
            flying += [
                gather(comm, ragged(comm.size, longest), KINDS[step % 3], step=step),
                exchange(comm, uneven(longest), step=step),
                to_owners(comm, ragged(comm.size, longest), KINDS[step % 3], step=step),
            ]
        for index in np.random.default_rng([step, comm.rank]).permutation(len(flying)):
            finish(flying[index])


@case
def parts_that_do_not_fit_are_refused(comm: Communicator) -> None:
    size, rank = comm.size, comm.rank
    f32, f64 = (
        current_buffers().put(np.zeros(6 * size, dtype)) for dtype in (np.float32, np.float64)
    )
    rows = [f32[6 * peer : 6 * peer + 6] for peer in range(size)]
    others = [current_buffers().put(np.zeros(6, np.float32)) for _ in range(size)]
    wide = [f64[6 * peer : 6 * peer + 6] for peer in range(size)]
    short = [*others[:rank], others[rank][:5], *others[rank + 1 :]]
    overlapping = [*others]
    overlapping[(rank + 1) % size] = f32[3:9]
    even = ends([6] * size)
    refusals: list[tuple[str, Callable[[], object]]] = [
        (f"give {size + 1} ascending", lambda: comm.reduction(f32, f32, to=Owners(even[1:]))),
        ("do not cut", lambda: comm.reduction(f32, f32, to=Owners([*even[:-1], 6 * size + 1]))),
        ("do not cut", lambda: comm.reduction(f32, f32, to=Owners([0, *even[:-2], -1, 6 * size]))),
        ("unknown op 'mean'", lambda: comm.reduction(f32, f32, "mean", to=Owners(even))),
        (f"receive has {6 * size} el", lambda: comm.allgatherv(f32, f32, [5] * size)),
        (f"give {size} counts", lambda: comm.allgatherv(rows[rank], f32, [6] * size + [0])),
        ("none negative", lambda: comm.allgatherv(rows[rank], f32, [*[6] * (size - 1), -1])),
        ("send has 5 elements", lambda: comm.allgatherv(rows[rank][:5], f32, [6] * size)),
        (
            "receive is float64 and send float32",
            lambda: comm.allgatherv(rows[rank], f64, [6] * size),
        ),
        (f"send has {size + 1} buffers", lambda: comm.all_to_all([*rows, f32], others)),
        (f"receive has {size + 1} buffers", lambda: comm.all_to_all(rows, [*others, f32])),
        ("receive is float64 and send float32", lambda: comm.all_to_all(rows, wide)),
        ("receive has 5 elements where 6", lambda: comm.all_to_all(rows, short)),
        ("overlaps another buffer", lambda: comm.all_to_all(rows, overlapping))
        if size > 1
        else ("receive has", lambda: comm.all_to_all(rows, [f32[:0]])),
        (
            "overlaps another buffer",
            lambda: comm.all_to_all([f32[:6]] * size, [*others[:-1], f32[:6]]),
        )
        if size > 1
        else ("receive has", lambda: comm.all_to_all(rows, [f32[:1]])),
        ("not one-dimensional", lambda: comm.all_to_all([f32.reshape(2, -1)] * size, others)),
    ]
    for words, call in refusals:
        with pytest.raises(UsageError, match=words):
            call()
    finish(gather(comm, ragged(size, 100)))


@case
def collectives_count_what_they_send(comm: Communicator) -> None:
    for count in (1000, 300_000):
        send = current_buffers().put(np.zeros(count, F32))

        def sent(to: Any, send: Any = send) -> list[int]:
            return comm.control.allgather(comm.reduction(send, send, to=to).wire_bytes)

        nbytes, others = send.nbytes, comm.size - 1
        bounds = [count * rank // comm.size for rank in range(comm.size + 1)]
        parts = [4 * (hi - lo) for lo, hi in pairwise(bounds)]
        assert sent(Owners(bounds)) == [nbytes - part for part in parts]
        for to in (EVERYONE, Root(0)):
            least = nbytes * others // comm.size if comm.size > 1 else 0
            assert all(least <= each <= nbytes * others for each in sent(to)[1:])
        if comm.size == 1:
            assert sent(EVERYONE) == [0]


@case
def guards_around_parts_stay(comm: Communicator) -> None:
    counts = ragged(comm.size, 300)
    memory = Memory(comm, sum(counts), F32)
    send = current_buffers().put(data(comm.rank, counts[comm.rank], F32))
    comm.allgatherv(send, memory.buffer, counts).wait()
    memory.check_guards(f"rank {comm.rank}: allgatherv")
    current_buffers().write(memory.buffer, data(comm.rank, sum(counts), F32))
    comm.reduction(memory.buffer, memory.buffer, to=Owners(ends(counts))).launch().wait()
    memory.check_guards(f"rank {comm.rank}: sum to owners")
