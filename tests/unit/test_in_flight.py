"""What must not happen to collectives and gradients that are under way."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import ncclkv
from ncclkv.comm import threads
from ncclkv.errors import CommAborted, UsageError


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
