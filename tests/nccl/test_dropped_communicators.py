"""Layer 2, recording stand-in, not NCCL: communicators dropped without a close."""

from __future__ import annotations

import gc
import sys
import warnings
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("cupy", reason="layer 2 needs CuPy: pip install 'ncclkv[cuda12]'")

from ncclkv.comm.nccl.communicator import NcclCommunicator
from ncclkv.errors import RankLost
from ncclkv.store.kvstore import KVStore
from ncclkv.store.options import Options
from tests.nccl.broken_communicators import aborted, ones
from tests.nccl.standin import Worker, run_on_standin
from tests.nccl.test_watched_waits import Eyes, error_of, watched

pytestmark = pytest.mark.limit(30)


def dropped(worker: Worker, make: Callable[[NcclCommunicator], Any]) -> Eyes:
    """Return weak references to the parts of a communicator that is dropped."""
    comm, eyes = watched(worker)
    made = make(comm)
    del comm, made
    gc.collect()
    return eyes


@pytest.mark.parametrize("make", [lambda comm: comm, lambda comm: KVStore("nccl", comm, Options())])
def test_a_dropped_communicator_warns_and_is_freed_by_abort(make):
    def body(worker: Worker) -> None:
        dropped(worker, make).wait()
        assert aborted(worker)

    with pytest.warns(ResourceWarning) as caught:
        run_on_standin(1, body)
    (warning,) = caught
    assert str(warning.message) == (
        "rank 0 of 1: a communicator of GPUs, or its store, was dropped without an end; call "
        "close(), or create it in a with statement"
    )


def test_a_rank_that_waits_for_a_rank_whose_store_was_dropped_raises():
    def body(worker: Worker) -> None:
        if worker.rank == 0:
            dropped(worker, lambda comm: comm).wait()
            return
        comm, _ = watched(worker)
        comm._peers.left_ranks = comm._peers._host.left_ranks
        array = ones(worker)
        comm.allreduce(array, array)
        error = error_of(comm.synchronize)
        assert type(error) is RankLost
        assert "farewell: a communicator of GPUs, or its store, was dropped" in str(error)
        comm.abort("the test is over")

    with pytest.warns(ResourceWarning, match="rank 0 of 2"):
        run_on_standin(2, body)


@pytest.mark.parametrize("lazy", [False, True])
def test_works_in_flight_complete_before_a_dropped_communicator_ends(lazy):
    def body(worker: Worker) -> list[float]:
        array = ones(worker)

        def launch(comm: NcclCommunicator) -> None:
            comm.reduction(array, array).launch(lambda lo, hi: str(comm) and None)

        eyes = dropped(worker, launch)
        eyes.wait()
        gc.collect()  # the launched work kept the communicator alive
        assert aborted(worker)
        return worker.streams.get(array).tolist()

    with pytest.warns(ResourceWarning):
        assert run_on_standin(2, body, lazy=lazy) == [[2.0] * 4] * 2


def test_it_is_aborted_when_nothing_is_in_flight_and_not_before():
    def body(worker: Worker) -> None:
        array = ones(worker)
        eyes = dropped(worker, lambda comm: comm.allreduce(array, array))
        assert not aborted(worker)
        eyes.wait()
        assert aborted(worker)

    with pytest.warns(ResourceWarning):
        run_on_standin(2, body, lazy=True)


@pytest.fixture
def unraisable(monkeypatch: pytest.MonkeyPatch) -> list[BaseException | None]:
    """Record the errors that no caller can catch."""
    found: list[BaseException | None] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda args: found.append(args.exc_value))
    return found


def test_what_is_dropped_is_freed_where_warnings_are_errors(unraisable):
    def body(worker: Worker) -> None:
        dropped(worker, lambda comm: comm).wait()
        assert aborted(worker)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run_on_standin(1, body)
    assert [type(each) for each in unraisable] == [ResourceWarning]


def test_a_communicator_dropped_during_a_capture_does_not_invalidate_it(unraisable):
    def body(worker: Worker) -> None:
        comm, eyes = watched(worker)
        array = ones(worker)
        comm.allreduce(array, array)
        other = NcclCommunicator(
            worker.peers.duplicate(), worker.binding, worker.streams.another(), worker.kernels
        )
        with other.capture() as graph:
            del comm
            gc.collect()
            other.allreduce(array, array).wait()
        assert not aborted(worker)
        eyes.wait()
        assert aborted(worker)
        graph.launch().wait()
        other.close()

    with pytest.warns(ResourceWarning):
        run_on_standin(1, body, lazy=True)
    assert unraisable == []


def test_without_a_watcher_it_is_freed_at_once():
    def body(worker: Worker) -> None:
        comm = NcclCommunicator(worker.peers, worker.binding, worker.streams, worker.kernels)
        del comm
        gc.collect()
        assert aborted(worker)

    with pytest.warns(ResourceWarning):
        run_on_standin(1, body)


def test_without_a_watcher_nothing_is_aborted_in_flight():
    def body(worker: Worker) -> None:
        comm, array = worker.communicator(), ones(worker)
        comm.allreduce(array, array)
        del comm
        gc.collect()
        assert not aborted(worker)
        worker.broken_on_purpose = True  # freed at the end of the process

    with pytest.warns(ResourceWarning):
        run_on_standin(2, body, lazy=True)


def test_a_closed_communicator_is_dropped_without_a_warning():
    def body(worker: Worker) -> None:
        for end in (lambda comm: comm.close(), lambda comm: comm.abort("enough")):
            dropped(worker, end)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run_on_standin(1, body)
    assert [each for each in caught if each.category is ResourceWarning] == []
