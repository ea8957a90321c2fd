"""Layer 2, recording stand-in, not NCCL: the end of a communicator, after success and failure."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Callable

import pytest

pytest.importorskip("cupy", reason="layer 2 needs CuPy: pip install 'ncclkv[cuda12]'")

from ncclkv.comm.diagnosis import farewells
from ncclkv.comm.nccl import lifetime
from ncclkv.comm.nccl.communicator import NcclCommunicator
from ncclkv.errors import CommAborted, CommTimeout, RankLost, UsageError
from tests.nccl.broken_communicators import aborted, communicator, ones, raises
from tests.nccl.standin import Worker, run_on_standin

pytestmark = pytest.mark.limit(30)


def test_close_ends_all_ranks_and_a_late_rank_finds_it_closed():
    def body(worker: Worker) -> None:
        comm = communicator(worker)
        array = ones(worker)
        work = comm.allreduce(array, array)
        comm.close()
        comm.close()
        assert work.done()
        work.wait()
        comm.abort("closed long ago")
        for call in (comm.synchronize, comm.barrier, lambda: comm.allreduce(array, array)):
            with raises(UsageError, f"rank {worker.rank} of 3: the communicator is closed"):
                call()
        assert worker.log.lines.count("destroy communicator 0") == 1
        assert not aborted(worker)

    run_on_standin(3, body)


def test_close_aborts_what_a_lost_rank_would_hold_up():
    def body(worker: Worker) -> None:
        comm = communicator(worker)
        if worker.rank == 1:
            comm.abort("first to go")
        else:
            comm.close()
            comm.close()
        assert aborted(worker)
        assert "destroy communicator 0" not in worker.log.lines

    run_on_standin(3, body)


def test_the_first_failure_is_reported():
    def body(worker: Worker) -> None:
        comm = communicator(worker)
        comm._lifetime.fail(RankLost("rank 7 left"))
        comm.abort("enough")
        with raises(RankLost, "rank 7 left"):
            comm.synchronize()

    run_on_standin(1, body)


def test_close_forgives_a_lost_rank_as_on_hosts(monkeypatch):
    monkeypatch.setattr(farewells, "_failure", None)

    def body(worker: Worker) -> None:
        comm = communicator(worker)
        if worker.rank == 1:
            comm.abort("first to go")
        else:
            comm.close()

    run_on_standin(2, body)
    assert not farewells.failure()


def test_a_failure_is_kept_without_the_frames_that_it_passed():
    """Check that a stored failure has no frames: they refer to arrays and to the store."""

    def body(worker: Worker) -> None:
        comm = communicator(worker)
        with pytest.raises(RankLost) as caught, comm._lifetime:
            raise RankLost("rank 7 left")
        assert caught.value.__traceback__ is not None
        assert comm._lifetime.failure is not None
        assert comm._lifetime.failure.__traceback__ is None
        comm.abort("enough")

    run_on_standin(1, body)


def test_a_communicator_that_failed_with_a_work_in_flight_is_freed():
    """Check that an ended communicator is freed, although its work in flight refers to it."""

    def failed(worker: Worker) -> weakref.ref[NcclCommunicator]:
        comm, array = communicator(worker), ones(worker)

        def apply(lo: int, hi: int) -> None:
            assert comm.size == 1

        comm.reduction(array, array).launch(apply)
        comm._lifetime.fail(RankLost("rank 7 left"))
        return weakref.ref(comm)

    def body(worker: Worker) -> None:
        ended = failed(worker)
        gc.collect()
        assert ended() is None

    run_on_standin(1, body, lazy=True)


def test_a_destroy_that_fails_is_raised_and_logged():
    def fail(*_: object) -> None:
        raise CommTimeout("NCCL 2.32.3: ncclCommDestroy waited 300 s")

    def body(worker: Worker) -> None:
        comm = communicator(worker)
        if worker.rank == 0:
            worker.binding.destroy = fail
            with raises(CommTimeout, "ncclCommDestroy"):
                comm.close()
            assert worker.streams._closed
            comm.close()
            assert comm._peers.said == ["NCCL 2.32.3: ncclCommDestroy waited 300 s"]
        else:
            worker.binding.destroy = lambda *_: None
            comm.close()

    run_on_standin(2, body)


def test_a_rank_that_is_lost_in_a_destroy_ends_it():
    """Check that a close does not wait for a rank that can join no more, and raises nothing."""
    gone: dict[int, str] = {}

    def beside_a_lost_rank(handle: object, look: Callable[[], None]) -> None:
        gone[1] = "enough"
        begin = time.monotonic()
        while time.monotonic() - begin < 5.0:
            look()
            time.sleep(0.01)

    def body(worker: Worker) -> None:
        comm = communicator(worker)
        if worker.rank == 0:
            worker.binding.destroy = beside_a_lost_rank
            comm._peers.gone = gone
            begin = time.monotonic()
            comm.close()
            assert 0.2 < time.monotonic() - begin < 3.0
            (said,) = comm._peers.said
            assert said.startswith("rank 0 of 2: rank 1 left while NCCL freed the communicator")
            comm.close()
        else:
            comm.control.barrier("close")
            comm.abort("enough")

    run_on_standin(2, body)


def test_the_end_of_the_process_aborts_what_is_open(monkeypatch):
    monkeypatch.setattr(lifetime, "_open", set())  # communicators of other tests are not counted

    def body(worker: Worker) -> None:
        forgotten = communicator(worker)
        closed = forgotten.duplicate()
        assert len(lifetime._open) == 2
        closed.close()
        assert len(lifetime._open) == 1
        lifetime._abort_all()
        assert not lifetime._open
        assert [line for line in worker.log.lines if "abort" in line] == ["abort communicator 0"]
        with raises(CommAborted, "without closing the communicator"):
            forgotten.barrier()

    run_on_standin(1, body)


def test_a_forked_child_aborts_nothing(monkeypatch):
    monkeypatch.setattr(lifetime, "_open", set())

    def body(worker: Worker) -> None:
        comm = communicator(worker)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(lifetime, "_process", -1)
            lifetime._abort_all()
        comm.close()
        assert not aborted(worker)

    run_on_standin(1, body)
