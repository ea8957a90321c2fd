"""What must not happen to collectives and gradients that are under way."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import ncclkv
from ncclkv.comm import threads
from ncclkv.comm.solo import SoloCommunicator
from ncclkv.errors import CommAborted, UsageError
from ncclkv.testing import run_ranks


@pytest.fixture
def kv() -> Iterator[ncclkv.KVStore]:
    with ncclkv.create("local") as store:
        store.init(["a", "b"], [np.zeros(2), np.zeros(2)])
        yield store


def test_an_interrupted_collective_never_counts_as_complete() -> None:
    def interrupted(lo: int, hi: int) -> None:
        raise KeyboardInterrupt

    first, second = threads.communicators(2, timeout=5.0)
    send = np.ones(4)
    second.allreduce(send.copy(), np.zeros(4))
    with pytest.raises(KeyboardInterrupt):
        first.reduce_apply(send, np.zeros(4), "sum", interrupted).wait()
    with pytest.raises(CommAborted, match="broken off by KeyboardInterrupt"):
        first.barrier()


def test_a_grad_view_cannot_be_pushed_again_before_it_is_flushed(kv: ncclkv.KVStore) -> None:
    gradient = kv.grad_view("a")
    gradient[:] = 1
    kv.push("a", gradient)
    with pytest.raises(UsageError, match="rank 0 of 1: push of key 'a': its grad_view was pushed"):
        kv.push("a", gradient)
    assert np.array_equal(kv.pull("a"), [1, 1])


@pytest.mark.parametrize("local", [False, True])
def test_a_pull_does_not_write_over_a_pushed_gradient(local: bool) -> None:
    with ncclkv.create("local", bucket_bytes=0) as kv:
        kv.init(["a", "b"], [np.zeros(2), np.zeros(2)])
        gradient = kv.grad_view("b")
        kv.push("b", np.full(2, 5.0))
        with pytest.raises(UsageError, match="out lies in a grad_view"):
            kv.pull("a", out=gradient, local=local)
        assert np.array_equal(kv.pull("b"), [5, 5])


def test_a_refused_pushpull_pushes_nothing(kv: ncclkv.KVStore) -> None:
    gradient = kv.grad_view("b")
    kv.init("c", np.zeros(2))  # in another bucket, for the layout of the others is sealed
    kv.push("b", np.ones(2))
    with pytest.raises(UsageError, match="out lies in a grad_view"):
        kv.pushpull("c", np.ones(2), out=gradient)
    assert np.array_equal(kv.pull("c"), [0, 0])


def test_a_forgotten_communicator_still_answers() -> None:
    def body() -> float:
        one, other = threads.world(5.0), threads.world(5.0)
        sums = np.zeros(100_000)
        work = one.allreduce(np.ones(100_000), sums)
        if one.rank == 0:
            del one, work
            gc.collect()
        else:
            work.wait()
        other.barrier().wait()
        return float(sums.sum()) if other.rank else 200_000.0

    assert run_ranks(2, body, timeout=5.0) == [200_000.0, 200_000.0]


def test_splits_are_forgotten_with_their_communicators() -> None:
    def body() -> int:
        comm = threads.world(5.0)
        for _ in range(20):
            comm.duplicate().close()
        comm.barrier().wait()
        gc.collect()
        return sum(type(item) is threads.Group for item in gc.get_objects())

    before = sum(type(item) is threads.Group for item in gc.get_objects())
    assert max(run_ranks(2, body, timeout=5.0)) - before < 10


def test_an_interrupted_verb_breaks_a_store_of_several_ranks() -> None:
    def interrupt(key: Any, total: Any, stored: Any) -> None:
        raise KeyboardInterrupt

    def body() -> str:
        kv = ncclkv.create("threads")
        kv.init("w", np.zeros(2))
        kv.set_updater(interrupt)
        with pytest.raises(KeyboardInterrupt):
            kv.push("w", np.ones(2))
        with pytest.raises(CommAborted) as caught:
            kv.pull("w")
        kv.close()
        return str(caught.value)

    for rank, text in enumerate(run_ranks(2, body)):
        assert text.startswith(f"rank {rank} of 2: push was broken off by KeyboardInterrupt")


def test_an_interrupted_verb_leaves_a_store_of_one_rank_whole(kv: ncclkv.KVStore) -> None:
    def interrupt(key: Any, total: Any, stored: Any) -> None:
        raise KeyboardInterrupt

    kv.set_updater(interrupt)
    with pytest.raises(KeyboardInterrupt):
        kv.push("a", np.ones(2))
    assert np.array_equal(kv.pull("a"), [0, 0])


@pytest.mark.parametrize(
    ("end", "error", "words"),
    [
        (lambda comm: comm.close(), UsageError, "rank 0 of 1: the communicator is closed"),
        (lambda comm: comm.abort("enough"), CommAborted, "left the communicator, and said: enough"),
    ],
)
def test_a_communicator_of_one_rank_ends_too(end: Any, error: Any, words: str) -> None:
    comm = SoloCommunicator(5.0)
    buffer = np.ones(2)
    end(comm)
    for call in (
        lambda: comm.allreduce(buffer, buffer),
        lambda: comm.broadcast(buffer),
        lambda: comm.reduce_scatter(buffer, buffer),
        lambda: comm.allgather(buffer, buffer),
        comm.barrier,
        comm.duplicate,
        lambda: comm.split(0),
    ):
        with pytest.raises(error, match=words):
            call()
    comm.close()


@pytest.mark.parametrize("root", [1, -1, 0.0, "0", True])
def test_a_root_is_the_number_of_a_rank(root: Any) -> None:
    with pytest.raises(UsageError, match="is not a rank: ranks go from 0 to 0"):
        SoloCommunicator(5.0).broadcast(np.ones(2), root)
