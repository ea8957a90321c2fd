"""Layer 2, recording stand-in, not NCCL: the end of a communicator, after success and failure."""

from __future__ import annotations

import pytest

pytest.importorskip("cupy", reason="layer 2 needs CuPy: pip install 'ncclkv[cuda12]'")

from ncclkv.comm.host import finalize
from ncclkv.comm.nccl import progress
from ncclkv.errors import CommAborted, CommTimeout, RankLost, UsageError
from tests.nccl.breaking import aborted, communicator, ones, raises
from tests.nccl.standin import Seat, run_seats

pytestmark = pytest.mark.limit(30)


def test_close_ends_all_and_whoever_is_late_finds_it_closed():
    def body(seat: Seat) -> None:
        comm = communicator(seat)
        array = ones(seat)
        work = comm.allreduce(array, array)
        comm.close()
        comm.close()
        assert work.done()
        work.wait()
        comm.abort("closed long ago")
        for call in (comm.synchronize, comm.barrier, lambda: comm.allreduce(array, array)):
            with raises(UsageError, f"rank {seat.rank} of 3: the communicator is closed"):
                call()
        assert seat.log.lines.count("destroy communicator 0") == 1
        assert not aborted(seat)

    run_seats(3, body)


def test_close_aborts_what_a_lost_rank_would_hold_up():
    def body(seat: Seat) -> None:
        comm = communicator(seat)
        if seat.rank == 1:
            comm.abort("first to go")
        else:
            comm.close()
            comm.close()
        assert aborted(seat)
        assert "destroy communicator 0" not in seat.log.lines

    run_seats(3, body)


def test_the_first_failure_is_the_one_that_is_told():
    def body(seat: Seat) -> None:
        comm = communicator(seat)
        comm._progress.fail(RankLost("rank 7 left"))
        comm.abort("enough")
        with raises(RankLost, "rank 7 left"):
            comm.synchronize()

    run_seats(1, body)


def test_close_forgives_a_lost_rank_as_on_hosts(monkeypatch):
    monkeypatch.setattr(finalize, "_failure", None)

    def body(seat: Seat) -> None:
        comm = communicator(seat)
        if seat.rank == 1:
            comm.abort("first to go")
        else:
            comm.close()

    run_seats(2, body)
    assert finalize._failure is None


def test_a_failure_is_kept_without_the_frames_that_it_passed():
    """Check that a stored failure has no frames: they refer to arrays and to the store."""

    def body(seat: Seat) -> None:
        comm = communicator(seat)
        with pytest.raises(RankLost) as caught, comm._progress.guard:
            raise RankLost("rank 7 left")
        assert caught.value.__traceback__ is not None
        assert comm._progress.failure is not None
        assert comm._progress.failure.__traceback__ is None
        comm.abort("enough")

    run_seats(1, body)


def test_a_destroy_that_fails_is_raised_and_told():
    def fail(*_: object) -> None:
        raise CommTimeout("NCCL 2.32.3: ncclCommDestroy waited 300 s")

    def body(seat: Seat) -> None:
        comm = communicator(seat)
        if seat.rank == 0:
            seat.binding.destroy = fail
            with raises(CommTimeout, "ncclCommDestroy"):
                comm.close()
            assert seat.streams._closed
            comm.close()
            assert comm._peers.said == ["NCCL 2.32.3: ncclCommDestroy waited 300 s"]
        else:
            seat.binding.destroy = lambda handle: None
            comm.close()

    run_seats(2, body)


def test_the_end_of_the_process_aborts_what_is_open(monkeypatch):
    monkeypatch.setattr(progress, "_open", set())  # communicators of other tests are not counted

    def body(seat: Seat) -> None:
        forgotten = communicator(seat)
        closed = forgotten.duplicate()
        assert len(progress._open) == 2
        closed.close()
        assert len(progress._open) == 1
        progress._abort_all()
        assert not progress._open
        assert [line for line in seat.log.lines if "abort" in line] == ["abort communicator 0"]
        with raises(CommAborted, "without closing the communicator"):
            forgotten.barrier()

    run_seats(1, body)


def test_a_forked_child_aborts_nothing(monkeypatch):
    monkeypatch.setattr(progress, "_open", set())

    def body(seat: Seat) -> None:
        comm = communicator(seat)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(progress, "_process", -1)
            progress._abort_all()
        comm.close()
        assert not aborted(seat)

    run_seats(1, body)
