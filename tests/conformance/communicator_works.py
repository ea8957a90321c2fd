"""Cases of several collectives in flight, of `apply`, and of split communicators.

Cases as in `tests.conformance.communicator`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ncclkv.comm.base import Communicator
from ncclkv.comm.destinations import EVERYONE, Root
from ncclkv.comm.host.start import world
from ncclkv.comm.messages.channel import SHORT_BYTES, SLICE_BYTES
from ncclkv.comm.transport import Steps
from ncclkv.comm.types import ALIGNMENT, Apply, DoneWork, Work
from ncclkv.comm.wire import Wire
from ncclkv.errors import NotSupported, UsageError
from tests.conformance.capabilities import current_buffers
from tests.conformance.communicator import case, data, expected, identical, summed

F32 = np.dtype(np.float32)


def start(comm: Communicator, count: int, step: int) -> tuple[Any, Work]:
    """Launch an in-place sum of this rank's data of a step."""
    buffer = current_buffers().put(data(comm.rank, count, F32, step))
    return buffer, comm.allreduce(buffer, buffer)


def check(comm: Communicator, buffer: Any, step: int) -> None:
    """Fail unless `buffer` has the sum of the step."""
    wanted = expected(comm, buffer.size, F32, "sum", step)
    what = f"rank {comm.rank} of {comm.size}: the sum of step {step}"
    summed(comm, current_buffers().get(buffer), wanted, what)


@case
def memory_is_zeroed_and_aligned(comm: Communicator) -> None:
    for nbytes in (0, 1, 100, 4096):
        memory = comm.allocate(nbytes)
        assert (memory.size, memory.dtype) == (nbytes, np.uint8)
        assert nbytes == 0 or current_buffers().address(memory) % ALIGNMENT == 0
        assert not current_buffers().get(memory).any()


@case
def apply_gets_every_element_once_and_ready(comm: Communicator) -> None:
    for count in (0, 1, 1000, SLICE_BYTES // 4 * comm.size + 77):
        for root in (None, *range(comm.size)):
            place, seen = current_buffers(), np.zeros(count, np.int8)
            send = place.put(data(comm.rank, count, F32))
            receive, ready = (place.put(np.full(count, np.nan, F32)) for _ in range(2))

            def apply(lo: int, hi: int, receive=receive, seen=seen, ready=ready) -> None:
                seen[lo:hi] += 1
                current_buffers().copy(receive[lo:hi], into=ready[lo:hi])

            updates = root is None or root == comm.rank
            to = EVERYONE if root is None else Root(root)
            comm.reduction(send, receive, to=to).launch(apply if updates else None).wait()
            if updates:
                assert (seen == 1).all(), f"{np.flatnonzero(seen != 1)[:5]} of {count}"
                wanted = expected(comm, count, F32, "sum")
                summed(comm, place.get(ready), wanted, f"rank {comm.rank}: at apply")


@case
def apply_may_change_its_range(comm: Communicator) -> None:
    for count in (1000, 30_000, SLICE_BYTES // 4 * comm.size + 77):
        place, sums = current_buffers(), np.zeros(count, F32)
        buffer, ready = place.put(data(comm.rank, count, F32)), place.put(sums)
        zeros = place.put(sums)

        def apply(lo: int, hi: int, buffer=buffer, ready=ready, zeros=zeros) -> None:
            current_buffers().copy(buffer[lo:hi], into=ready[lo:hi])
            current_buffers().copy(zeros[lo:hi], into=buffer[lo:hi])

        comm.reduction(buffer, buffer).launch(apply).wait()
        wanted = expected(comm, count, F32, "sum")
        summed(comm, place.get(ready), wanted, f"rank {comm.rank}: a sum of {count} at apply")
        assert not place.get(buffer).any()


@case
def works_are_waited_for_in_any_order(comm: Communicator) -> None:
    counts = [5, 60_000, 0, 20_000, 700_000, 1]
    for turn in range(3):
        flying = [start(comm, count, step) for step, count in enumerate(counts)]
        order = np.random.default_rng([turn, comm.rank]).permutation(len(counts))
        for index in order:
            flying[index][1].wait()
            check(comm, flying[index][0], int(index))


@case
def polling_done_completes_a_work(comm: Communicator) -> None:
    flying = [start(comm, count, step) for step, count in enumerate((3, 200_000))]
    limit = time.monotonic() + 10
    while not all(work.done() for _, work in flying):
        assert time.monotonic() < limit
        time.sleep(1e-4)
    for step, (buffer, work) in enumerate(flying):
        work.wait()
        check(comm, buffer, step)


@case
def ranks_at_different_paces_get_data_of_their_step(comm: Communicator) -> None:
    rng = np.random.default_rng(comm.rank)
    for step in range(25):
        time.sleep(rng.random() * 0.003 * (rng.random() < 0.5))
        root = step % comm.size
        small, first = start(comm, 40, step)
        large, second = start(comm, 9000, step)
        shared = current_buffers().put(data(root if comm.rank == root else 99, 500, F32, step))
        third = comm.broadcast(shared, root)
        time.sleep(rng.random() * 0.002)
        for work in (second, third, first) if comm.rank % 2 else (first, second, third):
            work.wait()
        check(comm, small, step)
        check(comm, large, step)
        wanted = data(root, 500, F32, step)
        identical(current_buffers().get(shared), wanted, f"rank {comm.rank}: broadcast {step}")


@case
def a_barrier_waits_for_the_last_rank(comm: Communicator) -> None:
    time.sleep(0.02 * (comm.size - comm.rank))
    came = time.monotonic()
    comm.barrier().wait()
    went = time.monotonic()
    times = comm.control.allgather((came, went))
    assert min(left for _, left in times) >= max(arrived for arrived, _ in times)
    time.sleep(0.02 * comm.rank)
    came = time.monotonic()
    comm.control.barrier()
    times = comm.control.allgather((came, time.monotonic()))
    assert min(left for _, left in times) >= max(arrived for arrived, _ in times)


@case
def control_carries_objects_of_any_length(comm: Communicator) -> None:
    for scale in (0, 1, 5000, 300_000):
        item = {"rank": comm.rank, "text": "x" * (scale * comm.rank)}
        items = comm.control.allgather(item, "items")
        assert [each["rank"] for each in items] == list(range(comm.size))
        assert [len(each["text"]) for each in items] == [scale * r for r in range(comm.size)]
    for root in range(comm.size):
        item = ("from", root) if comm.rank == root else "ignored"
        assert comm.control.broadcast(item, root, "an item") == ("from", root)
    assert comm.control.allgather(None) == [None] * comm.size


@case
def control_messages_and_buffers_are_separate(comm: Communicator) -> None:
    buffer, work = start(comm, 200_000, 1)
    if comm.rank % 2:
        work.wait()
    assert comm.control.allgather(comm.rank) == list(range(comm.size))
    work.wait()
    check(comm, buffer, 1)


@case
def a_duplicate_has_separate_messages(comm: Communicator) -> None:
    other = comm.duplicate(timeout=7.5)
    assert (other.rank, other.size, other.timeout) == (comm.rank, comm.size, 7.5)
    assert comm.duplicate().timeout == comm.timeout
    # Calls of the same length, launched in another order on odd ranks, where that is allowed.
    both = [(comm, 1), (other, 2)]
    reverse = comm.rank % 2 and current_buffers().capabilities.free_order
    for count in (10, 100_000):
        launched = both[::-1] if reverse else both
        flying = {step: start(own, count, step) for own, step in launched}
        for own, step in both:
            buffer, work = flying[step]
            work.wait()
            check(own, buffer, step)
    other.close()
    buffer, work = start(comm, 10, 3)
    work.wait()
    check(comm, buffer, 3)


@case
def split_by_color_and_key(comm: Communicator) -> None:
    half = comm.split(comm.rank % 2, key=-comm.rank)
    assert half is not None
    mine = [rank for rank in range(comm.size) if rank % 2 == comm.rank % 2]
    assert half.control.allgather(comm.rank) == mine[::-1]
    assert (half.rank, half.size) == (mine[::-1].index(comm.rank), len(mine))
    assert half.timeout == comm.timeout
    for count in (3, 50_000):
        buffer, work = start(half, count, 4)
        work.wait()
        check(half, buffer, 4)
    half.close()


@case
def split_ties_go_by_rank_and_colors_may_be_far_apart(comm: Communicator) -> None:
    part = comm.split(1_000_000 if comm.rank == 0 else 0)
    assert part is not None
    mine = [0] if comm.rank == 0 else [*range(1, comm.size)]
    assert part.control.allgather(comm.rank) == mine
    part.close()


@case
def split_leaves_out_ranks_without_a_color(comm: Communicator) -> None:
    part = comm.split(None if comm.rank == comm.size - 1 else 3)
    if comm.rank == comm.size - 1:
        assert part is None
    else:
        assert part is not None
        assert part.control.allgather(comm.rank) == [*range(comm.size - 1)]
        part.close()
    assert comm.split(None) is None
    assert comm.control.allgather(comm.rank) == [*range(comm.size)]


@case
def children_of_children(comm: Communicator) -> None:
    pair = comm.split(comm.rank // 2)
    assert pair is not None
    twin = pair.duplicate()
    alone = twin.split(twin.rank)
    assert alone is not None
    assert alone.control.allgather(comm.rank) == [comm.rank]
    send = current_buffers().put(np.full(2, comm.rank, np.int64))
    twin.allreduce(send, send).wait()
    first = comm.rank // 2 * 2
    assert (
        current_buffers().get(send).tolist()
        == [sum(r for r in (first, first + 1) if r < comm.size)] * 2
    )
    for own in (alone, twin, pair):
        own.close()


@case
def invalid_arguments_are_refused(comm: Communicator) -> None:
    def attempt(dtype: Any, op: str) -> None:
        buffer = current_buffers().put(np.zeros(4, dtype))
        comm.allreduce(buffer, buffer, op)

    with pytest.raises(UsageError, match="unknown op 'mean'; the ops are sum, avg, max, min, prod"):
        attempt(np.float32, "mean")
    for op in ("max", "min"):
        with pytest.raises(NotSupported, match=f"{op} of complex64.* no order; use sum or avg"):
            attempt(np.complex64, op)
    with pytest.raises(NotSupported, match="avg of bool: use sum"):
        attempt(np.bool_, "avg")
    f32, f64, seven = (
        current_buffers().put(zeros)
        for zeros in (np.zeros(6 * comm.size, F32), np.zeros(6 * comm.size), np.zeros(7, F32))
    )
    refusals: list[tuple[str, Callable[[], object]]] = [
        (f"root={comm.size} is not a rank", lambda: comm.broadcast(f32, comm.size)),
        ("root=-1 is not a rank", lambda: comm.reduce(f32, f32, "sum", -1)),
        ("receive has 3 elements", lambda: comm.allreduce(f32, f32[:3])),
        ("receive is float64 and send float32", lambda: comm.allreduce(f32, f64)),
        ("not one-dimensional and contiguous", lambda: comm.allreduce(f32[::2], f32[::2])),
        ("not one-dimensional and contiguous", lambda: comm.broadcast(f32.reshape(2, -1))),
        ("receive has 7 elements", lambda: comm.reduce_scatter(f32, seven)),
        ("receive has 7 elements", lambda: comm.allgather(f32, seven)),
    ]
    for words, call in refusals:
        with pytest.raises(UsageError, match=words):
            call()
    buffer, work = start(comm, SHORT_BYTES, 6)
    work.wait()
    check(comm, buffer, 6)


@case
def close_twice(comm: Communicator) -> None:
    own = comm.duplicate()
    buffer, work = start(own, 10, 1)
    work.wait()
    check(own, buffer, 1)
    own.close()
    own.close()
    own.abort("closed long ago")
    buffer, work = start(comm, 10, 2)
    work.wait()
    check(comm, buffer, 2)


def pieces(buffer: Any) -> list[Any]:
    """Return the elements of a buffer as buffers of one element."""
    return [buffer[index : index + 1] for index in range(buffer.size)]


def no_steps(wire: Wire, apply: Apply | None) -> Steps:
    """Make a program of no exchange."""
    yield from ()


def shared_calls(comm: Communicator) -> dict[str, Callable[[], object]]:
    """Return each call that all ranks make together, by the name that its refusal states."""
    place = current_buffers()
    one, none = place.put(np.ones(1, F32)), place.put(np.zeros(0, F32))
    each = place.put(np.zeros(comm.size, F32))
    sent, parts = [one] * comm.size, pieces(each)
    return {
        "a reduction": lambda: comm.allreduce(each, each),
        "a reduction of no elements": lambda: comm.allreduce(none, none),
        "a reduction to owners": lambda: comm.reduce_scatter(each, one),
        "broadcast": lambda: comm.broadcast(each),
        "broadcast of no elements": lambda: comm.broadcast(none),
        "allgather": lambda: comm.allgather(one, each),
        "allgatherv": lambda: comm.allgatherv(one, each, [1] * comm.size),
        "all_to_all": lambda: comm.all_to_all(sent, parts),
        "a program": lambda: comm.program(no_steps, what="a program").launch(),
        "barrier": comm.barrier,
        "split": lambda: comm.split(None),
        "duplicate": comm.duplicate,
        "close": comm.close,
        "control.allgather": lambda: comm.control.allgather(comm.rank),
        "control.broadcast": lambda: comm.control.broadcast(comm.rank),
        "control.barrier": comm.control.barrier,
        "world": lambda: world(1.0),
    }


def refuses(name: str, call: Callable[[], object]) -> None:
    """Fail unless a call is refused by its name."""
    named = {"control.broadcast": "control.allgather"}.get(name, name.partition(" of ")[0])
    words = f"rank [0-9]+ of [0-9]+: {named.removesuffix(' to owners')} was called inside 'apply'"
    with pytest.raises(UsageError, match=words):
        call()


def in_callbacks(comm: Communicator, function: Callable[[], object], rank: int) -> None:
    """Call a function on one rank, in `apply` and in a step; the collectives must be right."""
    place, called = current_buffers(), []

    def callback(*_: int) -> None:
        if comm.rank == rank:
            called.append(function())

    for count in (8, 100_000):
        send = place.put(data(comm.rank, count, F32))
        receive = place.put(np.zeros(count, F32))
        comm.reduction(send, receive).launch(callback).wait()
        summed(comm, place.get(receive), expected(comm, count, F32, "sum"), "the outer sum")
        assert bool(called) == (comm.rank == rank)
        called.clear()
    gathered = place.put(np.zeros(comm.size, F32))
    own = place.put(np.full(1, comm.rank, F32))

    def steps(wire: Wire, apply: Apply | None) -> Steps:
        parts = yield from wire.read(own, lambda reader, owner: (0, 1))
        callback()
        for part, into in zip(parts, pieces(gathered), strict=True):
            wire.copy(part, into)

    comm.program(steps, what="a test", scratch=4 * comm.size, kept=[own, gathered]).launch().wait()
    assert place.get(gathered).tolist() == [*range(comm.size)]
    assert bool(called) == (comm.rank == rank)


@case
def calls_of_all_ranks_are_refused_inside_apply_and_steps(comm: Communicator) -> None:
    twin, part = comm.duplicate(), comm.split(0)
    assert part is not None
    # One rank alone tries: a call that is refused after its first step would leave it behind.
    for outer, inner in ((comm, comm), (comm, twin), (twin, comm), (comm, part), (part, twin)):
        calls = shared_calls(inner)

        def attempt(calls: dict[str, Callable[[], object]] = calls) -> None:
            for name, call in calls.items():
                refuses(name, call)

        in_callbacks(outer, attempt, comm.size - 1)
    for step, own in enumerate((comm, twin, part)):
        for count in (4, 100_000):
            buffer, work = start(own, count, step)
            work.wait()
            check(own, buffer, step)
        assert own.control.allgather(own.rank) == [*range(own.size)]
        own.barrier().wait()
    part.close()
    twin.close()


@case
def waits_inside_apply_and_steps_block_no_host(comm: Communicator) -> None:
    buffer, early = start(comm, 60_000, 2)
    late = comm.barrier()

    def attempt() -> None:
        for work in (early, late):
            if isinstance(work, DoneWork) or not (comm.blocks or work is late):
                work.wait()  # on a GPU a stream waits alone
            else:
                refuses("Work.wait", work.wait)
                refuses("Work.done", work.done)
        if not comm.blocks:
            refuses("synchronize", comm.synchronize)
            refuses("abort", lambda: comm.abort("inside a callback"))

    in_callbacks(comm, attempt, 0)
    late.wait()
    early.wait()
    check(comm, buffer, 2)


@case
def memory_of_the_node_is_refused_inside_apply_and_steps(comm: Communicator) -> None:
    if comm.node_shared(0) is not None:
        in_callbacks(comm, lambda: refuses("node_shared", lambda: comm.node_shared(64)), 0)
