"""Collectives and gradients in flight stay intact through errors and other verbs."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from threading import Event
from typing import Any

import numpy as np
import pytest

import ncclkv
from ncclkv.comm.host import threads
from ncclkv.comm.solo import SoloCommunicator
from ncclkv.errors import CommAborted, CommTimeout, RankLost, UsageError
from ncclkv.testing import run_ranks
from tests.harness.context import context_of
from tests.harness.slow import stretched


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
        first.reduction(send, np.zeros(4)).launch(interrupted).wait()
    with pytest.raises(CommAborted, match="interrupted by KeyboardInterrupt"):
        first.barrier()


def test_a_grad_view_cannot_be_pushed_again_before_it_is_flushed(kv: ncclkv.KVStore) -> None:
    gradient = kv.grad_view("a")
    gradient[:] = 1
    kv.push("a", gradient)
    with pytest.raises(UsageError, match="rank 0 of 1: push of key 'a': its grad_view was pushed"):
        kv.push("a", gradient)
    assert np.array_equal(kv.pull("a"), [1, 1])


@pytest.mark.parametrize("local", [False, True])
def test_a_pull_does_not_overwrite_a_pushed_gradient(local: bool) -> None:
    with ncclkv.create("local", bucket_bytes=0) as kv:
        kv.init(["a", "b"], [np.zeros(2), np.zeros(2)])
        gradient = kv.grad_view("b")
        kv.push("b", np.full(2, 5.0))
        with pytest.raises(UsageError, match="out lies in a grad_view"):
            kv.pull("a", out=gradient, local=local)
        assert np.array_equal(kv.pull("b"), [5, 5])


def test_only_a_pull_that_flushes_a_gradient_overwrites_it(kv: ncclkv.KVStore) -> None:
    gradient = kv.grad_view("b")
    kv.push("b", np.full(2, 5.0))
    with pytest.raises(UsageError, match="out lies in a grad_view"):
        kv.pull("b", out=gradient, local=True)
    kv.pull("b", out=gradient)
    assert np.array_equal(gradient, [5, 5])


def test_a_group_checks_at_its_end_which_gradients_it_flushes(kv: ncclkv.KVStore) -> None:
    gradient, out = kv.grad_view("b"), np.zeros(2)
    kv.init("c", np.ones(2))  # another bucket: the layout of the first is sealed
    with kv.group():
        kv.push("b", np.full(2, 5.0))
        with pytest.raises(UsageError, match="out lies in a grad_view"):
            kv.pull("c", out=gradient, local=True)
        kv.pull("c", out=gradient)
        kv.pull("b", out=out)
    assert [*gradient, *out] == [1, 1, 5, 5]


def test_a_refused_pushpull_pushes_nothing(kv: ncclkv.KVStore) -> None:
    gradient = kv.grad_view("b")
    kv.init("c", np.zeros(2))  # another bucket: the layout of the first is sealed
    kv.push("b", np.ones(2))
    with pytest.raises(UsageError, match="out lies in a grad_view"):
        kv.pushpull("c", np.ones(2), out=gradient)
    assert np.array_equal(kv.pull("c"), [0, 0])


def test_a_deleted_communicator_completes_its_collectives() -> None:
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

    assert run_ranks(2, body, timeout=stretched(5.0)) == [200_000.0, 200_000.0]


def test_splits_are_released_with_their_communicators() -> None:
    def body() -> int:
        comm = threads.world(5.0)
        for _ in range(20):
            comm.duplicate().close()
        comm.barrier().wait()
        gc.collect()
        return sum(type(item) is threads.ThreadGroup for item in gc.get_objects())

    before = sum(type(item) is threads.ThreadGroup for item in gc.get_objects())
    assert max(run_ranks(2, body, timeout=stretched(5.0))) - before < 10


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
        assert text.startswith(f"rank {rank} of 2: push was interrupted by KeyboardInterrupt")


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
        (lambda comm: comm.abort("enough"), CommAborted, "left the communicator; farewell: enough"),
    ],
)
def test_a_communicator_of_one_rank_is_closed_too(end: Any, error: Any, words: str) -> None:
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
def test_a_root_that_is_no_rank_is_refused(root: Any) -> None:
    with pytest.raises(UsageError, match="is not a rank: give an int from 0 to 0"):
        SoloCommunicator(5.0).broadcast(np.ones(2), root)


def test_any_exception_in_mid_verb_breaks_a_store_of_several_ranks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def body() -> str:
        kv = ncclkv.create("threads", timeout=5)
        kv.init("w", np.zeros(2))
        if kv.rank == 1:
            # A signal handler or a failed allocation raises here.
            def fail(*arguments: Any, flush: bool) -> None:
                raise RuntimeError("DataLoader worker exited")

            monkeypatch.setattr(context_of(kv).engine, "read_values", fail)
            with pytest.raises(RuntimeError):
                kv.pull("w")
            with pytest.raises(CommAborted, match="pull was interrupted by RuntimeError") as caught:
                kv.push("w", np.ones(2))
            kv.close()
            return str(caught.value)
        with pytest.raises(RankLost, match="rank 1 left"):
            kv.barrier()
        kv.close()
        return ""

    assert "close the store and make a new one" in run_ranks(2, body)[1]


def test_a_duplicate_is_made_within_its_own_timeout() -> None:
    waited = Event()

    def body() -> None:
        comm = threads.world(20.0)
        if comm.rank == 1:  # here, and late: a rank that returns is lost
            waited.wait(stretched(10))
            return
        begin = time.monotonic()
        with pytest.raises(CommTimeout, match=r"\(timeout 0.2 s\) for rank 1"):
            comm.duplicate(0.2)
        assert time.monotonic() - begin < 5
        waited.set()

    run_ranks(2, body)


def test_splits_by_other_than_ints_are_refused() -> None:
    for color, key in (("a", 0), (1.5, 0), (0, "z")):
        with pytest.raises(UsageError, match="is not an int"):
            SoloCommunicator(5.0).split(color, key)  # type: ignore[arg-type]


LOCKED = np.ones(4)
LOCKED.flags.writeable = False
ROOM = np.ones(8)


@pytest.mark.parametrize(
    ("send", "receive", "words"),
    [
        (np.ones(4), LOCKED, "read-only; pass one that can be written"),
        ([1.0], np.ones(1), "a list is no buffer; pass a NumPy array"),
        (np.array([None]), np.array([None]), "no store holds dtype object"),
        (np.ones(1, "M8[s]"), np.ones(1, "M8[s]"), "no store holds dtype datetime64"),
        (ROOM[:6], ROOM[2:], "send and receive overlap: one begins 16 bytes after the other"),
    ],
)
@pytest.mark.parametrize("size", [1, 2])
def test_invalid_buffers_are_refused_before_anything_is_sent(
    size: int, send: Any, receive: Any, words: str
) -> None:
    def body() -> None:
        comm = threads.world(5.0)
        with pytest.raises(UsageError, match=words):
            comm.allreduce(send, receive)
        sums = np.zeros(2)
        comm.allreduce(np.ones(2), sums).wait()
        assert (sums == comm.size).all()

    run_ranks(size, body)


def test_a_broadcast_into_read_only_memory_is_refused() -> None:
    def body() -> None:
        comm = threads.world(5.0)
        if comm.rank == 1:
            with pytest.raises(UsageError, match="read-only"):
                comm.broadcast(LOCKED, 0)
            comm.broadcast(np.zeros(4), 0).wait()
        else:
            comm.broadcast(LOCKED, 0).wait()

    run_ranks(2, body)


def test_numpy_integers_are_accepted_as_options() -> None:
    with ncclkv.create("local", root=np.int64(0), bucket_bytes=np.int64(1024)) as kv:  # type: ignore[arg-type]
        kv.init("w", np.ones(2))
        assert kv.pull("w").tolist() == [1, 1]


def test_a_pull_with_an_overflowing_cast_copies_the_other_keys(kv: ncclkv.KVStore) -> None:
    kv.push(["a", "b"], [np.array([np.nan, 1e20]), np.ones(2)])
    outs = [np.zeros(2, np.int32), np.zeros(2, np.int32)]
    kv.pull(["a", "b"], outs)
    assert outs[1].tolist() == [1, 1]
