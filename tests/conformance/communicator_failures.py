"""Cases in which a rank does not arrive, leaves, or makes another call.

Cases as in `tests.conformance.communicator`, for two ranks or more.  The last rank misbehaves, each
time on a duplicate, which stays broken.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import pytest

from ncclkv.comm.base import Collective, Communicator
from ncclkv.comm.destinations import Owners
from ncclkv.comm.messages.channel import SHORT_BYTES
from ncclkv.comm.transport import Steps
from ncclkv.comm.types import Apply, Work
from ncclkv.comm.wire import Wire
from ncclkv.errors import (
    CommAborted,
    CommTimeout,
    KVStoreError,
    OrderMismatch,
    RankLost,
    UsageError,
)
from tests.conformance.capabilities import current_buffers
from tests.conformance.communicator import case

LONG = 30.0
"""Seconds of a deadline that must not be reached."""

LONG_BYTES = 1 << 20
"""Bytes of a sum that takes both steps."""

ORDER = "all ranks must make the same calls in the same order"

Call = Callable[[Communicator], object]


def deadline() -> float:
    """Return the seconds that ranks wait for a rank that never arrives."""
    return current_buffers().capabilities.deadline


def slack() -> float:
    """Return the seconds after its deadline, or after a rank has left, that a wait may last."""
    return current_buffers().capabilities.slack


def last(comm: Communicator) -> int:
    """Return the rank that misbehaves."""
    return comm.size - 1


def ones(nbytes: int) -> Any:
    return current_buffers().put(np.ones(nbytes, np.uint8))


def finish(comm: Communicator, work: Work, timeout: float | None = None) -> None:
    """Block until a collective is complete: on a device, a work's own wait does not."""
    work.wait(timeout)
    comm.synchronize(timeout)


def to_all(nbytes: int) -> Call:
    def call(comm: Communicator) -> None:
        finish(comm, comm.allreduce(ones(nbytes), ones(nbytes)))

    return call


def to_rank_0(comm: Communicator) -> None:
    """All ranks take part in a long reduction to one of them."""
    finish(comm, comm.reduce(ones(LONG_BYTES), ones(LONG_BYTES), "sum", 0))


def from_last(nbytes: int) -> Call:
    def call(comm: Communicator) -> None:
        finish(comm, comm.broadcast(ones(nbytes), last(comm)))

    return call


def uneven(comm: Communicator) -> list[int]:
    """Return a different length for each rank."""
    return [9 + rank for rank in range(comm.size)]


def gather(comm: Communicator) -> None:
    counts = uneven(comm)
    finish(comm, comm.allgatherv(ones(counts[comm.rank]), ones(sum(counts)), counts))


def exchange(comm: Communicator) -> None:
    finish(comm, comm.all_to_all(*([ones(9) for _ in range(comm.size)] for _ in range(2))))


def gathering(comm: Communicator, nbytes: int, what: str = "a test") -> Collective:
    """Return a program in which each rank reads all arrays of so many bytes."""
    own = ones(nbytes)

    def steps(wire: Wire, apply: Apply | None) -> Steps:
        yield from wire.read(own, lambda reader, owner: (0, own.size))

    scratch = comm.size * nbytes
    return comm.program(steps, what=what, nbytes=nbytes, scratch=scratch, kept=[own])


def program(nbytes: int) -> Call:
    return lambda comm: finish(comm, gathering(comm, nbytes).launch())


# Calls with their names in messages.
MOVES: dict[str, Call] = {
    "a reduction of 8 bytes to all ranks": to_all(8),
    "a reduction of 100000 bytes to all ranks": to_all(100_000),
    "a reduction of 1048576 bytes to rank 0": to_rank_0,
    "a broadcast of 8 bytes": from_last(8),
    "a broadcast of 100000 bytes": from_last(100_000),
    "a reduce_scatter": lambda c: finish(c, c.reduce_scatter(ones(9 * c.size), ones(9))),
    "an allgather": lambda c: finish(c, c.allgather(ones(9), ones(9 * c.size))),
    "an allgatherv": gather,
    "an all_to_all": exchange,
    "a test of 9 bytes": program(9),
    "a test of 600000 bytes": program(600_000),
}
CALLS: dict[str, Call] = {
    **MOVES,
    "a barrier": lambda c: c.barrier().wait(),
    "an exchange of objects (names)": lambda c: c.control.allgather("x", "names"),
    "a barrier (epoch)": lambda c: c.control.barrier("epoch"),
    "a barrier (duplicate)": lambda c: c.duplicate(),
    "an exchange of objects (split)": lambda c: c.split(0),
}


@contextmanager
def broken(comm: Communicator, timeout: float) -> Iterator[Communicator]:
    """Duplicate a communicator to be broken; each rank leaves it when all are done with it."""
    # The last abort takes longer on one rank than on another, up to NCCL's own limit.
    comm.barrier().wait()
    own = comm.duplicate(timeout)
    comm.barrier().wait()
    yield own
    comm.barrier().wait()
    own.abort("the case is over")


@contextmanager
def raises_within(kind: type[KVStoreError], seconds: float, *words: str) -> Iterator[None]:
    """Expect an error of exactly that class, with every one of `words`, in time."""
    begin = time.monotonic()
    with pytest.raises(kind) as caught:
        yield
    took = time.monotonic() - begin
    text = str(caught.value)
    assert caught.type is kind
    assert took < seconds, f"{took:.2f} s: {text}"
    missing = [word for word in words if word not in text]
    assert not missing, f"lacks {missing} in its text: {text}"


@case
def a_missing_rank_is_named_in_time(comm: Communicator) -> None:
    who = f"rank {comm.rank} of {comm.size}: "
    for what, call in [*CALLS.items(), ("a barrier (close)", lambda c: c.close())]:
        with broken(comm, deadline()) as own:
            if comm.rank != last(comm):
                named = current_buffers().capabilities.missing if what in MOVES else "rank {last};"
                missing = f"(timeout {deadline():g} s) for {named.format(last=last(comm))}"
                with raises_within(CommTimeout, deadline() + slack(), who, what, missing, ORDER):
                    call(own)


@case
def all_missing_ranks_are_named(comm: Communicator) -> None:
    with broken(comm, deadline()) as own:
        if comm.rank == 0:
            others = ", ".join(str(rank) for rank in range(1, comm.size))
            # In between stands the wait of a rank for rank 0, if its report arrives in time.
            missing = f"for {'ranks' if comm.size > 2 else 'rank'} {others};"
            with raises_within(CommTimeout, deadline() + slack(), missing, "; all ranks must make"):
                own.barrier().wait()


@case
def a_wait_for_a_later_call_names_the_rank_missing_in_the_first(comm: Communicator) -> None:
    def third(own: Communicator) -> None:
        works = [own.allgather(ones(100_000), ones(100_000 * own.size)) for _ in range(3)]
        finish(own, works[-1])

    with broken(comm, deadline()) as own:
        if comm.rank != last(comm):
            missing = f"for {current_buffers().capabilities.missing.format(last=last(comm))}"
            with raises_within(CommTimeout, deadline() + slack(), "an allgather", missing):
                third(own)
    with broken(comm, LONG) as own:
        if comm.rank == last(comm):
            time.sleep(0.03)
            own.abort("enough")
        else:
            with raises_within(RankLost, slack(), f"rank {last(comm)} left while an allgather"):
                third(own)


@case
def a_wait_can_have_its_own_deadline(comm: Communicator) -> None:
    with broken(comm, LONG) as own:
        if comm.rank != last(comm):
            work = own.allreduce(ones(8), ones(8))
            work.label = "key 'w'"
            label = "a reduction of 8 bytes to all ranks (key 'w') waited 0."
            with raises_within(CommTimeout, 0.1 + slack(), label, "(timeout 0.1 s)"):
                finish(own, work, timeout=0.1)


@case
def every_call_after_a_failure_raises_it_at_once(comm: Communicator) -> None:
    with broken(comm, deadline()) as own:
        if comm.rank != last(comm):
            before = own.allreduce(ones(8), ones(8))
            with raises_within(CommTimeout, deadline() + slack(), "a barrier waited"):
                own.barrier().wait()
            for call in (to_all(8), to_rank_0, CALLS["a barrier (epoch)"], lambda c: c.split(0)):
                with raises_within(CommTimeout, deadline(), "a barrier waited"):
                    call(own)
            with raises_within(CommTimeout, deadline(), "a barrier waited"):
                before.wait()


@case
def a_rank_that_leaves_is_named_with_its_reason(comm: Communicator) -> None:
    for what, call in CALLS.items():
        with broken(comm, LONG) as own:
            if comm.rank == last(comm):
                time.sleep(0.03)
                own.abort("ValueError: höher als 3")
            else:
                reason = f"rank {last(comm)} left while {what}"
                with raises_within(RankLost, slack(), reason, "farewell: ValueError: höher als 3"):
                    call(own)


@case
def data_sent_before_a_rank_left_arrive(comm: Communicator) -> None:
    with broken(comm, LONG) as own:
        buffer = current_buffers().put(np.full(100, comm.rank, np.int64))
        if comm.rank == last(comm):
            own.broadcast(buffer, last(comm)).done()
            own.abort("no more")
            comm.control.barrier("it has left")
        else:
            comm.control.barrier("it has left")
            if current_buffers().capabilities.sent_counts:
                own.broadcast(buffer, last(comm)).wait()
                assert (current_buffers().get(buffer) == last(comm)).all()
            with raises_within(RankLost, slack(), f"rank {last(comm)} left", "farewell: no more"):
                own.barrier().wait()


@case
def a_rank_that_left_cannot_make_calls(comm: Communicator) -> None:
    with broken(comm, LONG) as own:
        own.abort("enough")
        with raises_within(CommAborted, slack(), f"rank {comm.rank} of {comm.size}", "enough"):
            own.barrier().wait()


@case
def a_closed_communicator_refuses_calls(comm: Communicator) -> None:
    own = comm.duplicate()
    own.close()
    for call in (to_all(8), CALLS["a barrier (epoch)"]):
        with raises_within(UsageError, slack(), f"rank {comm.rank} of {comm.size}", "is closed"):
            call(own)


@case
def an_error_in_apply_breaks_the_communicator(comm: Communicator) -> None:
    def apply(lo: int, hi: int) -> None:
        raise ZeroDivisionError("in apply")

    with broken(comm, LONG) as own:
        with pytest.raises(ZeroDivisionError, match="in apply"):
            # at launch if all messages have arrived, else in the wait
            finish(own, own.reduction(ones(8), ones(8)).launch(apply))
        for call in (to_all(8), CALLS["a barrier (epoch)"]):
            with raises_within(CommAborted, slack(), "ZeroDivisionError: in apply"):
                call(own)


@case
def close_does_not_wait_for_ranks_that_left(comm: Communicator) -> None:
    with broken(comm, LONG) as own:
        if comm.rank == last(comm):
            own.abort("first to go")
        begin = time.monotonic()
        own.close()
        own.close()
        assert time.monotonic() - begin < slack()


@case
def a_message_of_another_length_is_an_order_mismatch(comm: Communicator) -> None:
    lengths = ((10, 20), (20, 10), (0, 1), (1, 0), (SHORT_BYTES, 5))
    for sent, awaited in lengths if current_buffers().capabilities.compares_empty else lengths[:2]:
        with broken(comm, current_buffers().capabilities.mismatch_seconds) as own:
            sends = comm.rank == last(comm)
            if sends and current_buffers().capabilities.sender_goes_on:
                own.broadcast(ones(sent), last(comm)).done()
                continue
            text = f"rank {last(comm)} sent {sent} bytes where {awaited} were expected"
            with current_buffers().mismatch(text, "made different calls"):
                finish(own, own.broadcast(ones(sent if sends else awaited), last(comm)))


@case
def sums_of_different_lengths_fail_everywhere(comm: Communicator) -> None:
    for count in (10, 200_000):
        with broken(comm, current_buffers().capabilities.mismatch_seconds) as own:
            mine = count + (comm.rank == last(comm)) * comm.size
            with current_buffers().mismatch(f"rank {comm.rank}: rank "):
                finish(own, own.allreduce(ones(mine), ones(mine)))


@case
def a_message_of_an_exchange_of_another_length_is_named(comm: Communicator) -> None:
    with broken(comm, current_buffers().capabilities.mismatch_seconds) as own:
        sends = comm.rank == last(comm)
        receive = [ones(9 if sends or peer != last(comm) else 20) for peer in range(comm.size)]
        send = [ones(9 if not sends or peer == last(comm) else 10) for peer in range(comm.size)]
        if sends and current_buffers().capabilities.sender_goes_on:
            own.all_to_all(send, receive).done()
        else:
            text = f"rank {last(comm)} sent 10 bytes where 20 were expected"
            with current_buffers().mismatch(text, "made different calls"):
                finish(own, own.all_to_all(send, receive))


@case
def counts_that_differ_are_an_order_mismatch(comm: Communicator) -> None:
    for factor in (1, 100_000):
        with broken(comm, current_buffers().capabilities.mismatch_seconds) as own:
            counts = [factor * count for count in uneven(comm)]
            sends = comm.rank == last(comm)
            counts[-1] += 7 * sends
            buffers = ones(counts[comm.rank]), ones(sum(counts))
            if sends and current_buffers().capabilities.sender_goes_on:
                with suppress(OrderMismatch):  # ranks that share memory compare all counts
                    own.allgatherv(*buffers, counts).done()
            else:
                sent, awaited = counts[-1] + 7, counts[-1]
                text = f"rank {last(comm)} sent {sent} bytes where {awaited} were expected"
                with current_buffers().mismatch(text, "made different calls"):
                    finish(own, own.allgatherv(*buffers, counts))


@case
def bounds_that_differ_are_an_order_mismatch(comm: Communicator) -> None:
    for count in (30 * comm.size, 100_000 * comm.size):
        with broken(comm, current_buffers().capabilities.mismatch_seconds) as own:
            even = [count // comm.size * rank for rank in range(comm.size + 1)]
            mine = [*range(comm.size), count] if comm.rank == last(comm) else even
            with current_buffers().mismatch(f"rank {comm.rank}: rank ", "made different calls"):
                finish(own, own.reduction(ones(count), ones(count), to=Owners(mine)).launch())


@case
def programs_of_other_names_are_an_order_mismatch(comm: Communicator) -> None:
    if not current_buffers().capabilities.compares_names:
        return
    for nbytes in (9, 600_000):
        with broken(comm, LONG) as own, current_buffers().mismatch(f"rank {comm.rank}"):
            name = "a 1bit sum" if comm.rank == last(comm) else "a 2bit sum"
            finish(own, gathering(own, nbytes, name).launch())


@case
def programs_of_other_sizes_are_an_order_mismatch(comm: Communicator) -> None:
    for nbytes in (9, 600_000):
        with broken(comm, current_buffers().capabilities.mismatch_seconds) as own:
            mine = nbytes + (comm.rank == last(comm))
            with current_buffers().mismatch(f"rank {comm.rank}"):
                finish(own, gathering(own, mine).launch())


@case
def a_program_that_meets_a_reduction_is_an_order_mismatch(comm: Communicator) -> None:
    # On several nodes they are messages between different ranks, and only stores compare calls.
    if not current_buffers().capabilities.compares_names or on_several_nodes(comm):
        return
    with broken(comm, LONG) as own, current_buffers().mismatch(f"rank {comm.rank}"):
        call = to_all if comm.rank == last(comm) else program
        call(LONG_BYTES)(own)


def on_several_nodes(comm: Communicator) -> bool:
    """Return whether some ranks share memory and others do not."""
    sizes = comm.control.allgather(comm.local_size)
    return sizes not in ([1] * comm.size, [comm.size] * comm.size)
