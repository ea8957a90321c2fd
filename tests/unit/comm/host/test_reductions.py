"""Repeated reductions: prepared once, and correct after every change of their arrays."""

from __future__ import annotations

import gc
import warnings
import weakref
from collections.abc import Callable

import numpy as np
import pytest

from ncclkv import testing
from ncclkv.arrays.memory import address
from ncclkv.comm.base import Communicator
from ncclkv.comm.host import reductions, threads
from ncclkv.comm.shm.staging import INLINE_BYTES
from ncclkv.errors import UsageError
from ncclkv.kernels.host import errstate
from ncclkv.kernels.host.errstate import Quiet
from tests.harness.slow import stretched

RANKS = 3
TOTAL = RANKS * (RANKS + 1) // 2
SHORT, LONG = 1000, INLINE_BYTES // 4 + 1000

Body = Callable[[Communicator, np.ndarray, np.ndarray], None]


def run(body: Body, count: int, *, own: bool) -> None:
    """Reduce two arrays twice on every rank, then change an array and reduce again."""

    def rank() -> None:
        comm = threads.world()
        send, receive = (
            comm.allocate(4 * count).view(np.float32) if own else np.zeros(count, np.float32)
            for _ in range(2)
        )
        for factor in (1, 2):
            send[:] = factor * (comm.rank + 1)
            comm.allreduce(send, receive).wait()
            assert (receive == factor * TOTAL).all(), f"rank {comm.rank}"
        body(comm, send, receive)
        comm.barrier().wait()
        comm.close()

    testing.run_ranks(RANKS, rank, timeout=stretched(20.0))


def another_op(comm: Communicator, send: np.ndarray, receive: np.ndarray) -> None:
    send[:] = comm.rank + 1
    comm.allreduce(send, receive, "max").wait()
    assert (receive == RANKS).all()
    comm.allreduce(send, receive, "sum").wait()
    assert (receive == TOTAL).all()


def another_root(comm: Communicator, send: np.ndarray, receive: np.ndarray) -> None:
    send[:] = comm.rank + 1
    receive[:] = -1
    comm.reduce(send, receive, "sum", 1).wait()
    comm.barrier().wait()
    assert (receive == (TOTAL if comm.rank == 1 else -1)).all()


def another_dtype(comm: Communicator, send: np.ndarray, receive: np.ndarray) -> None:
    send.dtype = receive.dtype = np.dtype(np.int32)
    send[:] = comm.rank + 1
    comm.allreduce(send, receive).wait()
    assert (receive == TOTAL).all()


def another_shape(comm: Communicator, send: np.ndarray, receive: np.ndarray) -> None:
    receive.shape = (2, -1)
    with pytest.raises(UsageError, match="not one-dimensional"):
        comm.allreduce(send, receive)


def a_receive_that_may_not_be_written(
    comm: Communicator, send: np.ndarray, receive: np.ndarray
) -> None:
    receive.flags.writeable = False
    with pytest.raises(UsageError, match="read-only"):
        comm.allreduce(send, receive)


def new_arrays_on_one_rank(comm: Communicator, send: np.ndarray, receive: np.ndarray) -> None:
    if comm.rank == 1:
        send, receive = comm.allocate(send.nbytes).view(send.dtype), np.zeros_like(receive)
    for factor in (1, 2):
        send[:] = factor * (comm.rank + 1)
        comm.allreduce(send, receive).wait()
        assert (receive == factor * TOTAL).all()
        comm.barrier().wait()


def arrays_that_are_gone(comm: Communicator, send: np.ndarray, receive: np.ndarray) -> None:
    first, second = (comm.allocate(send.nbytes).view(send.dtype) for _ in range(2))
    where = {address(first), address(second)}
    comm.allreduce(first, second).wait()
    comm.barrier().wait()
    gone = weakref.ref(first)
    del first, second
    gc.collect()
    assert gone() is None
    again = [comm.allocate(send.nbytes) for _ in range(2)]
    assert {address(array) for array in again} == where, "memory that was not given back"


@pytest.mark.parametrize("own", [False, True], ids=["plain", "own"])
@pytest.mark.parametrize("count", [SHORT, LONG], ids=["short", "long"])
@pytest.mark.parametrize(
    "body",
    [
        another_op,
        another_root,
        another_dtype,
        another_shape,
        a_receive_that_may_not_be_written,
        new_arrays_on_one_rank,
        arrays_that_are_gone,
    ],
)
@pytest.mark.filterwarnings("ignore:Setting the:DeprecationWarning")
def test_a_cached_reduction_is_checked_for_changes(body: Body, count: int, own: bool) -> None:
    run(body, count, own=own)


def test_the_number_of_cached_reductions_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reductions, "_MAX_PREPARED", 10)

    def rank() -> int:
        comm = threads.world()
        arrays = [np.full(3, comm.rank + 1.0) for _ in range(25)]
        for array in arrays:
            comm.allreduce(array, array).wait()
            assert (array == TOTAL).all()
        comm.close()
        return len(comm._reductions._prepared)

    assert max(testing.run_ranks(RANKS, rank)) <= 10


@pytest.mark.parametrize("in_contexts", [False, True])
def test_no_warning_is_shown_and_the_user_s_settings_stay(
    monkeypatch: pytest.MonkeyPatch, in_contexts: bool
) -> None:
    if in_contexts and not errstate._IN_CONTEXTS:
        pytest.skip("this NumPy keeps its settings once a thread, and not in contexts")
    monkeypatch.setattr(errstate, "_IN_CONTEXTS", in_contexts)
    large, out = np.full(3, 3e38, np.float32), np.empty(3, np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Quiet().run(np.add, large, large, out)
        assert np.isinf(out).all()
        with pytest.raises(RuntimeWarning, match="overflow"):
            np.add(large, large)
