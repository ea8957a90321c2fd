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
from tests.nccl.breaking import aborted, ones
from tests.nccl.standin import Seat, run_seats
from tests.nccl.test_watched import Eyes, error_of, watched

pytestmark = pytest.mark.limit(30)


def dropped(seat: Seat, make: Callable[[NcclCommunicator], Any]) -> Eyes:
    """Return weak references to the parts of a communicator that is dropped."""
    comm, eyes = watched(seat)
    made = make(comm)
    del comm, made
    gc.collect()
    return eyes


@pytest.mark.parametrize("make", [lambda comm: comm, lambda comm: KVStore("nccl", comm, Options())])
def test_what_is_dropped_without_an_end_warns_and_is_freed_by_abort(make):
    def body(seat: Seat) -> None:
        dropped(seat, make).wait()
        assert aborted(seat)

    with pytest.warns(ResourceWarning) as caught:
        run_seats(1, body)
    (warning,) = caught
    assert str(warning.message) == (
        "rank 0 of 1: a communicator of GPUs, or its store, was dropped without an end; call "
        "close(), or create it in a with statement"
    )


def test_a_rank_that_waits_for_one_whose_store_was_dropped_is_told():
    def body(seat: Seat) -> None:
        if seat.rank == 0:
            dropped(seat, lambda comm: comm).wait()
            return
        comm, _ = watched(seat)
        comm._peers.left_ranks = comm._peers._host.left_ranks
        array = ones(seat)
        comm.allreduce(array, array)
        error = error_of(comm.synchronize)
        assert type(error) is RankLost
        assert "it said: a communicator of GPUs, or its store, was dropped" in str(error)
        comm.abort("the test is over")

    with pytest.warns(ResourceWarning, match="rank 0 of 2"):
        run_seats(2, body)


@pytest.mark.parametrize("lazy", [False, True])
def test_what_is_in_flight_when_it_is_dropped_is_done_first(lazy):
    def body(seat: Seat) -> list[float]:
        array = ones(seat)

        def launch(comm: NcclCommunicator) -> None:
            comm.reduction(array, array).launch(lambda lo, hi: str(comm) and None)

        eyes = dropped(seat, launch)
        eyes.wait()
        gc.collect()  # the launched work kept the communicator alive
        assert aborted(seat)
        return seat.streams.get(array).tolist()

    with pytest.warns(ResourceWarning):
        assert run_seats(2, body, lazy=lazy) == [[2.0] * 4] * 2


def test_it_is_aborted_when_nothing_is_in_flight_and_not_before():
    def body(seat: Seat) -> None:
        array = ones(seat)
        eyes = dropped(seat, lambda comm: comm.allreduce(array, array))
        assert not aborted(seat)
        eyes.wait()
        assert aborted(seat)

    with pytest.warns(ResourceWarning):
        run_seats(2, body, lazy=True)


@pytest.fixture
def unraisable(monkeypatch: pytest.MonkeyPatch) -> list[BaseException | None]:
    """Record the errors that no caller can catch."""
    found: list[BaseException | None] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda args: found.append(args.exc_value))
    return found


def test_what_is_dropped_is_freed_where_warnings_are_errors(unraisable):
    def body(seat: Seat) -> None:
        dropped(seat, lambda comm: comm).wait()
        assert aborted(seat)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run_seats(1, body)
    assert [type(each) for each in unraisable] == [ResourceWarning]


def test_what_is_dropped_amid_a_capture_does_not_spoil_it(unraisable):
    def body(seat: Seat) -> None:
        comm, eyes = watched(seat)
        array = ones(seat)
        comm.allreduce(array, array)
        other = NcclCommunicator(
            seat.peers.duplicate(), seat.binding, seat.streams.another(), seat.kernels
        )
        with other.capture() as graph:
            del comm
            gc.collect()
            other.allreduce(array, array).wait()
        assert not aborted(seat)
        eyes.wait()
        assert aborted(seat)
        graph.launch().wait()
        other.close()

    with pytest.warns(ResourceWarning):
        run_seats(1, body, lazy=True)
    assert unraisable == []


def test_where_nobody_looks_it_is_freed_at_once():
    def body(seat: Seat) -> None:
        comm = NcclCommunicator(seat.peers, seat.binding, seat.streams, seat.kernels)
        del comm
        gc.collect()
        assert aborted(seat)

    with pytest.warns(ResourceWarning):
        run_seats(1, body)


def test_where_nobody_looks_nothing_is_aborted_in_flight():
    def body(seat: Seat) -> None:
        comm, array = seat.communicator(), ones(seat)
        comm.allreduce(array, array)
        del comm
        gc.collect()
        assert not aborted(seat)
        seat.spoilt = True  # freed at the end of the process

    with pytest.warns(ResourceWarning):
        run_seats(2, body, lazy=True)


def test_what_was_closed_is_dropped_in_silence():
    def body(seat: Seat) -> None:
        for end in (lambda comm: comm.close(), lambda comm: comm.abort("enough")):
            dropped(seat, end)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run_seats(1, body)
    assert [each for each in caught if each.category is ResourceWarning] == []
