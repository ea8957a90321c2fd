"""Ranks that are threads: a waiting rank is woken by what it waits for, and by nothing else."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import ncclkv
from ncclkv import concurrency
from ncclkv.comm.host import threads
from ncclkv.comm.host.threads import ThreadGroup, ThreadTransport
from ncclkv.comm.messages.progress import open_progress_engines
from ncclkv.errors import CommAborted, RankLost
from ncclkv.testing import run_ranks
from tests.conformance.expect import check_words

RANKS = 4


@pytest.fixture
def long_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a rank that nobody wakes sleep past the limit of its test."""
    monkeypatch.setattr(threads, "_PAUSE_SECONDS", 60.0)


@pytest.mark.limit(20)
@pytest.mark.usefixtures("long_pauses")
@pytest.mark.parametrize("memory", ["files", "halves", "messages"])
def test_every_change_wakes_the_ranks_that_wait_for_it(
    monkeypatch: pytest.MonkeyPatch, memory: str
) -> None:
    monkeypatch.setenv("NCCLKV_NODE_MEMORY", memory)

    def body() -> list[float]:
        comm, sums = threads.world(), []
        for count in (3, 100_000):
            send, receive = np.full(count, comm.rank + 1.0), np.zeros(count)
            comm.allreduce(send, receive).wait()
            sums += [receive.min(), receive.max()]
        assert comm.control.allgather(comm.rank) == list(range(RANKS))
        comm.control.barrier("the end")
        comm.close()
        return sums

    assert run_ranks(RANKS, body) == [[10.0] * 4] * RANKS


def test_a_rank_does_not_own_the_stores_of_an_ended_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Give the threads of two runs the same identities, as the system may, and close no store."""
    identities = {f"rank {rank}": rank + 1 for rank in range(2)}
    monkeypatch.setattr(
        concurrency, "get_ident", lambda: identities.get(threading.current_thread().name, 9)
    )
    unclosed = []

    def body() -> int:
        kv = ncclkv.create("dist")
        kv.barrier()
        unclosed.append(kv)
        return len(open_progress_engines(concurrency.get_ident()))

    assert run_ranks(2, body) == run_ranks(2, body)


@pytest.fixture
def transports() -> list[ThreadTransport]:
    """Return the transports of the ranks of one group."""
    group = ThreadGroup()
    return [ThreadTransport(group, rank, RANKS) for rank in range(RANKS)]


def woken(transports: list[ThreadTransport]) -> list[int]:
    """Return for each rank the number of changes so far."""
    group = transports[0]._group
    return [group.changes[rank].count for rank in range(RANKS)]


def test_a_long_message_wakes_its_receiver_and_its_receipt_the_sender(
    transports: list[ThreadTransport],
) -> None:
    sent = np.arange(threads._EAGER_BYTES + 1).astype(np.uint8)
    into = np.zeros_like(sent)
    incoming = transports[2].receive(into, 1, 7)
    assert not incoming.done()
    outgoing = transports[1].send(sent, 2, 7)
    assert woken(transports) == [0, 0, 1, 0]
    assert not outgoing.done()
    assert incoming.done()
    assert woken(transports) == [0, 1, 1, 0]
    assert outgoing.done()
    assert incoming.done()
    assert np.array_equal(into, sent)


def test_a_short_message_leaves_its_sender_free_to_write_at_once(
    transports: list[ThreadTransport],
) -> None:
    sent = np.arange(threads._EAGER_BYTES).astype(np.uint8)
    into, wanted = np.zeros_like(sent), sent.copy()
    incoming = transports[2].receive(into, 1, 7)
    assert transports[1].send(sent, 2, 7).done()
    sent[:] = 77
    assert incoming.done()
    assert woken(transports) == [0, 0, 1, 0]
    assert np.array_equal(into, wanted)


def test_a_notice_wakes_its_readers_and_a_farewell_everyone(
    transports: list[ThreadTransport],
) -> None:
    assert woken(transports) == [0, 0, 0, 0]
    transports[0].post(b"notice", [1, 3])
    assert woken(transports) == [0, 1, 0, 1]
    assert [transport.inbox for transport in transports] == [[], [(0, b"notice")]] * 2
    transports[3].leave("done")
    assert woken(transports) == [1, 2, 1, 2]


def test_an_exchange_ends_when_a_rank_leaves_before_it(transports: list[ThreadTransport]) -> None:
    transports[2].leave("the program's end")
    with pytest.raises(RankLost) as caught:
        transports[1].split(0, 0)
    check_words(caught.value, "rank 1 of 4", "rank 2 left", "farewell: the program's end")


def test_the_first_farewell_stays(transports: list[ThreadTransport]) -> None:
    transports[1].leave("LaunchError: out of memory")
    transports[1].leave("its function returned without closing the store")
    assert transports[0].left_ranks() == {1: "LaunchError: out of memory"}


def test_abort_ends_all_communicators_of_a_thread() -> None:
    firsts: list[Any] = []
    ready, aborted = threading.Barrier(RANKS, timeout=20), threading.Event()

    def body() -> None:
        world = ncclkv.comm.world()
        part = world.split(world.rank % 2)
        assert part is not None
        firsts.append(threads._current.communicator)
        ready.wait()
        if world.rank == 1:
            for first in firsts:
                threads.abort(first, "the test")
            aborted.set()
        assert aborted.wait(20)
        for comm in (world, part):
            with pytest.raises(CommAborted, match="farewell: the test"):
                comm.barrier()

    run_ranks(RANKS, body)
