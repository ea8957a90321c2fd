"""Layer 2, recording stand-in, not NCCL: waits of the host, and errors that break a communicator.

The conformance suite has the duties of every communicator; these are this one's own.
"""

from __future__ import annotations

import time

import pytest

pytest.importorskip("cupy", reason="layer 2 needs CuPy: pip install 'ncclkv[cuda12]'")

from ncclkv import concurrency
from ncclkv.comm.nccl import deadlines, progress
from ncclkv.errors import (
    CommAborted,
    CommTimeout,
    Divergence,
    OrderMismatch,
    RankLost,
    SpecMismatch,
)
from ncclkv.system import watchdog
from tests.nccl.broken_communicators import aborted, communicator, leave_broken, ones, raises
from tests.nccl.standin import Worker, run_on_standin
from tests.nccl.standin.faults import Faults

pytestmark = pytest.mark.limit(30)


@pytest.mark.parametrize("lazy", [False, True])
def test_a_collective_that_no_rank_joins_passes_its_deadline(lazy):
    def body(worker: Worker) -> None:
        comm = communicator(worker)
        if worker.rank == 0:
            array = ones(worker)
            work = comm.allreduce(array, array)
            work.label = "key 'w'"
            work.wait()
            words = (
                "rank 0 of 2: a reduction of 16 bytes to all ranks (key 'w') waited 0.",
                "(timeout 0.1 s) for the other ranks (rank 1; recording stand-in",
                "all ranks must make the same calls",
            )
            with raises(CommTimeout, *words):
                comm.synchronize(0.1)
            assert aborted(worker)
            for call in (
                work.wait,
                work.done,
                comm.synchronize,
                comm.barrier,
                comm.duplicate,
                comm.control.barrier,
                lambda: comm.allreduce(array, array),
                lambda: comm.allreduce(array[:0], array[:0]),
            ):
                with raises(CommTimeout, *words):
                    call()
        leave_broken(worker, comm)

    run_on_standin(2, body, lazy=lazy)


def test_the_deadline_is_the_communicators_own_unless_given():
    def body(worker: Worker) -> None:
        parent = communicator(worker)
        comm = parent.duplicate(timeout=0.1)
        if worker.rank == 0:
            array = ones(worker)
            comm.allreduce(array, array).wait()
            with raises(CommTimeout, "(timeout 0.1 s)"):
                comm.synchronize()
        leave_broken(worker, comm)
        parent.abort("the test is over")

    run_on_standin(2, body)


def test_a_rank_that_leaves_is_named_with_its_reason():
    def body(worker: Worker) -> None:
        comm = communicator(worker)
        if worker.rank == 0:
            array = ones(worker)
            comm.allreduce(array, array).wait()
            comm._peers.gone = {1: "ValueError: höher als 3"}
            with raises(
                RankLost,
                "rank 0 of 2: rank 1 left while a reduction of 16 bytes to all ranks waited for it",
                "farewell: ValueError: höher als 3",
            ):
                comm.synchronize(10)
            assert aborted(worker)
        leave_broken(worker, comm)

    run_on_standin(2, body)


@pytest.mark.parametrize("disagreement", [OrderMismatch, SpecMismatch, Divergence])
def test_a_rank_that_left_with_a_disagreement_of_all_ranks_passes_it_on(disagreement):
    def body(worker: Worker) -> None:
        comm = communicator(worker)
        if worker.rank == 0:
            array = ones(worker)
            comm.allreduce(array, array).wait()
            comm._peers.gone = {1: f"{disagreement.__name__}: the ranks differ in call 3"}
            words = f"rank 0 of 2: rank 1 left with {disagreement.__name__}: the ranks differ in"
            with raises(disagreement, words):
                comm.synchronize(10)
        leave_broken(worker, comm)

    run_on_standin(2, body)


def test_of_several_ranks_that_left_the_one_that_did_not_follow_another_is_named():
    def body(worker: Worker) -> None:
        comm = communicator(worker)
        if worker.rank == 2:
            array = ones(worker)
            comm.allreduce(array, array).wait()
            gone = {0: "RankLost: rank 1 left", 1: "ValueError: on purpose"}
            comm._peers.gone = gone
            with raises(RankLost, "rank 1 left while", "farewell: ValueError: on purpose"):
                comm.synchronize(10)
        leave_broken(worker, comm)

    run_on_standin(3, body)


def test_data_that_a_rank_sent_before_it_left_arrive():
    def body(worker: Worker) -> list[float]:
        comm = communicator(worker)
        array = ones(worker)
        comm.allreduce(array, array).wait()
        comm._peers.gone = {1 - worker.rank: "no more"}
        comm.synchronize(10)
        values = worker.streams.get(array).tolist()
        leave_broken(worker, comm)
        return values

    assert run_on_standin(2, body) == [[2.0] * 4] * 2


def test_data_of_a_rank_that_left_has_a_moment_to_arrive(monkeypatch):
    monkeypatch.setattr(deadlines, "_GRACE_SECONDS", 10.0)

    def body(worker: Worker) -> None:
        comm = communicator(worker)
        array = ones(worker)
        if worker.rank == 1:
            time.sleep(0.2)  # rank 0 polls meanwhile
        comm.allreduce(array, array).wait()
        comm._peers.gone = {1: "no more"} if worker.rank == 0 else {}
        comm.synchronize(10)
        leave_broken(worker, comm)

    run_on_standin(2, body)


def test_what_nccl_reports_is_raised_with_its_name():
    def body(worker: Worker) -> None:
        comm = communicator(worker)
        if worker.rank == 0:
            array = ones(worker)
            comm.broadcast(array, 1).wait()
            words = ("rank 0 of 2: a broadcast of 16 bytes from rank 1: recording stand-in",)
            with raises(CommAborted, *words, "reports: the network is down"):
                comm.synchronize(10)
            assert aborted(worker)
        leave_broken(worker, comm)

    run_on_standin(2, body, faults={0: Faults(async_errors={2: "the network is down"})})


def test_a_refused_call_says_who_made_it():
    def refuse(*_: object) -> None:
        raise CommAborted("NCCL 2.32.3: ncclAllReduce failed: no memory")

    def body(worker: Worker) -> None:
        comm = communicator(worker)
        worker.binding.all_reduce = refuse
        array = ones(worker)
        words = "a reduction of 16 bytes to all ranks: NCCL 2.32.3: ncclAllReduce failed: no memory"
        for _ in range(2):
            with raises(CommAborted, f"rank {worker.rank} of 2: {words}"):
                comm.allreduce(array, array)
        assert aborted(worker)
        leave_broken(worker, comm)

    run_on_standin(2, body)


def test_a_call_of_nccls_that_never_returns_has_the_watchdog_in_a_capture_too(monkeypatch):
    armed: list[tuple[str, float]] = []

    class Alarm(watchdog.Alarm):
        def __enter__(self) -> None:
            armed.append((self._what, self._seconds))

        def __exit__(self, *_: object) -> None:
            armed.pop()

    monkeypatch.setattr(progress.watchdog, "Alarm", Alarm)
    seen = []

    def body(worker: Worker) -> None:
        comm = communicator(worker)
        reduce = worker.binding.all_reduce
        worker.binding.all_reduce = lambda *arguments: (seen.append(armed[:]), reduce(*arguments))
        array = ones(worker)
        comm.allreduce(array, array)
        comm.synchronize()
        with comm.capture():
            comm.allreduce(array, array).wait()
        comm.close()
        limit = worker.peers.timeout + deadlines.LEEWAY
        assert seen == [[("putting a collective on a stream of rank 0 of 1", limit)]] * 2

    run_on_standin(1, body)
    assert armed == []


def test_what_apply_raises_is_raised_and_breaks_the_communicator():
    def apply(lo: int, hi: int) -> None:
        raise ZeroDivisionError("in apply")

    def body(worker: Worker) -> None:
        comm = communicator(worker)
        array = ones(worker)
        with pytest.raises(ZeroDivisionError, match="in apply"):
            comm.reduction(array, array).launch(apply)
        assert aborted(worker)
        assert worker.streams.current() != worker.streams.communication
        for call in (comm.control.barrier, lambda: comm.allreduce(array, array)):
            with raises(CommAborted, "was interrupted by ZeroDivisionError: in apply"):
                call()
        leave_broken(worker, comm)

    run_on_standin(2, body)


def test_a_failure_among_the_hosts_breaks_the_device_too():
    def body(worker: Worker) -> None:
        parent = communicator(worker)
        comm = parent.duplicate(timeout=0.1)
        array = ones(worker)
        if worker.rank == 0:
            barrier = comm.barrier()
            barrier.label = "epoch"
            with raises(CommTimeout, "a barrier (epoch) waited 0."):
                barrier.wait()
            assert aborted(worker)
            with raises(CommTimeout, "a barrier (epoch)"):
                comm.allreduce(array, array)
        leave_broken(worker, comm)
        parent.abort("the test is over")

    run_on_standin(2, body)


@pytest.mark.parametrize(
    "wait",
    [
        lambda control: control.allgather(0, "epoch"),
        lambda control: control.broadcast(0, 1, "epoch"),
        lambda control: control.barrier("epoch"),
    ],
    ids=["allgather", "broadcast", "barrier"],
)
def test_host_objects_that_do_not_arrive_break_the_device_communicator(wait):
    def body(worker: Worker) -> None:
        parent = communicator(worker)
        comm = parent.duplicate(timeout=0.1)
        if worker.rank == 0:
            with raises(CommTimeout, "epoch"):
                wait(comm.control)
            assert aborted(worker)
        leave_broken(worker, comm)
        parent.abort("the test is over")

    run_on_standin(2, body)


def test_slow_work_of_the_current_stream_is_not_blamed_on_others():
    def body(worker: Worker) -> None:
        comm = communicator(worker)
        array = ones(worker)
        other = comm.duplicate(timeout=10)
        if worker.rank == 0:
            # The current stream waits for a collective of another communicator.
            other.allreduce(array, array).wait()
            with raises(CommTimeout, "the work of the current stream waited 0.", "the device;"):
                comm.synchronize(0.1)
        leave_broken(worker, other)
        comm.abort("the test is over")

    run_on_standin(2, body)


def test_ctrl_c_in_a_wait_breaks_nothing():
    def body(worker: Worker) -> None:
        comm = communicator(worker)
        array = ones(worker)
        if worker.rank == 0:
            work = comm.allreduce(array, array)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(concurrency, "sched_yield", _interrupt)
                with pytest.raises(KeyboardInterrupt):
                    comm.synchronize()
        worker.peers.control.barrier()
        if worker.rank == 1:
            work = comm.allreduce(array, array)
        work.wait()
        comm.synchronize()
        assert worker.streams.get(array).tolist() == [2.0] * 4
        comm.close()

    run_on_standin(2, body)


def _interrupt() -> None:
    raise KeyboardInterrupt
