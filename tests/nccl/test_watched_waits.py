"""Layer 2, recording stand-in, not NCCL: errors found while a program waits in CuPy.

The tests call the watcher, since the stand-in's device advances in its own thread.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

pytest.importorskip("cupy", reason="layer 2 needs CuPy: pip install 'ncclkv[cuda12]'")

from ncclkv.comm.diagnosis import farewells
from ncclkv.comm.nccl.communicator import NcclCommunicator
from ncclkv.comm.nccl.watcher import WatchedWorks
from ncclkv.errors import CommAborted, CommTimeout, KVStoreError, OrderMismatch, RankDied, RankLost
from ncclkv.store.kvstore import KVStore
from ncclkv.store.options import Options
from tests.conformance.capabilities import use_buffers
from tests.conformance.expect import full
from tests.harness.slow import stretched
from tests.nccl.broken_communicators import HostWithFarewells, aborted, leave_broken, ones
from tests.nccl.standin import Worker, run_on_standin
from tests.nccl.standin.buffers import StandInBuffers
from tests.nccl.standin.faults import Faults

pytestmark = pytest.mark.limit(30)

SOON = stretched(5.0)


class Eyes:
    """A watcher whose checks the test calls."""

    def __init__(self) -> None:
        self.added: list[WatchedWorks] = []

    def add(self, watched: WatchedWorks) -> None:
        self.added.append(watched)

    def look(self) -> bool:
        """Check once, and return whether anything is in flight."""
        added, self.added = self.added, []
        again = [each for each in added if each.look_over()]
        self.added += again
        return bool(again)

    def wait(self) -> None:
        """Check until nothing is in flight, as a program's wait in CuPy would see it."""
        limit = time.monotonic() + SOON
        while self.look():
            assert time.monotonic() < limit, "the wait was not ended"
            time.sleep(0.01)


def watched(worker: Worker, timeout: float | None = None) -> tuple[NcclCommunicator, Eyes]:
    eyes: Any = Eyes()
    peers = HostWithFarewells(worker.peers.duplicate(timeout))
    return NcclCommunicator(
        peers, worker.binding, worker.streams, worker.kernels, watcher=eyes
    ), eyes


def error_of(call: Callable[[], object]) -> KVStoreError:
    """Return a call's error."""
    with pytest.raises(KVStoreError) as caught:
        call()
    return caught.value


@pytest.mark.parametrize("lazy", [False, True])
def test_the_watcher_checks_from_a_launch_until_all_is_complete(lazy):
    def body(worker: Worker) -> None:
        comm, eyes = watched(worker)
        assert eyes.added == []
        array = ones(worker)
        for _ in range(3):
            comm.allreduce(array, array)
        assert len(eyes.added) == 1, "once for all that is in flight"
        eyes.wait()
        comm.allreduce(array, array)
        assert len(eyes.added) == 1
        eyes.wait()
        comm.close()

    run_on_standin(2, body, lazy=lazy)


def test_a_rank_that_left_ends_the_wait_and_the_next_call_raises(caplog):
    def body(worker: Worker) -> None:
        comm, eyes = watched(worker)
        if worker.rank == 0:
            array = ones(worker)
            comm.allreduce(array, array)
            comm._peers.gone = {1: "ValueError: on purpose"}
            eyes.wait()
            assert aborted(worker)
            for call in (comm.sync_stream, comm.synchronize, lambda: comm.allreduce(array, array)):
                error = error_of(call)
                assert type(error) is RankLost
                assert "rank 0 of 2: rank 1 left while a reduction of 16 bytes" in str(error)
                assert "farewell: ValueError: on purpose" in str(error)
        leave_broken(worker, comm)

    with caplog.at_level(logging.ERROR, "ncclkv"):
        run_on_standin(2, body)
    (record,) = caplog.records
    assert "rank 1 left while" in record.message
    assert "values read from this store now may be wrong" in record.message


def test_an_error_that_the_watcher_finds_is_noted_once_for_the_end_of_mpi(monkeypatch):
    noted: list[BaseException] = []
    monkeypatch.setattr(farewells, "failed", noted.append)

    def body(worker: Worker) -> None:
        comm, eyes = watched(worker)
        with use_buffers(StandInBuffers(worker)):
            kv = KVStore("nccl", comm, Options())
            kv.init("a", full(0))
            kv.barrier()
            worker.broken_on_purpose = True
            if kv.rank == 0:
                array = ones(worker)
                comm.allreduce(array, array)
                comm._peers.gone = {1: "ValueError: on purpose"}
                eyes.wait()
                for call in (kv.wait, kv.barrier):
                    assert type(error_of(call)) is RankLost
            leave_broken(worker, comm)

    run_on_standin(2, body)
    (error,) = noted
    assert isinstance(error, RankLost)


def test_a_wait_that_has_ended_is_shown_no_more():
    def body(worker: Worker) -> None:
        comm, eyes = watched(worker)
        recorder = comm.calls.recorder
        array = ones(worker)
        if worker.rank == 0:
            comm.allreduce(array, array)
            limit = time.monotonic() + SOON
            while recorder.read(0).wait is None:
                assert eyes.look()
                assert time.monotonic() < limit, "the wait is not shown"
                time.sleep(0.01)
            worker.peers.control.barrier("it is shown")
        else:
            worker.peers.control.barrier("it is shown")
            comm.allreduce(array, array)
        eyes.wait()
        assert recorder.read(0).wait is None
        worker.peers.control.barrier("it was looked at")
        comm.close()

    run_on_standin(2, body)


def test_a_rank_whose_process_has_ended_is_named():
    def body(worker: Worker) -> None:
        comm, eyes = watched(worker)
        if worker.rank == 0:
            array = ones(worker)
            comm.allreduce(array, array)
            comm._peers.calls.ended_ranks = lambda: {1}
            eyes.wait()
            assert type(error_of(comm.synchronize)) is RankDied
            assert "rank 1 ended while a reduction" in str(error_of(comm.synchronize))
        leave_broken(worker, comm)

    run_on_standin(2, body)


def test_the_deadline_counts_from_when_a_collective_is_first_in_line():
    def body(worker: Worker) -> None:
        comm, eyes = watched(worker, timeout=0.2)
        if worker.rank == 0:
            array = ones(worker)
            comm.allreduce(array, array)
            time.sleep(0.3)
            assert eyes.look(), "its clock starts at the first look"
            eyes.wait()
            error = error_of(comm.synchronize)
            assert type(error) is CommTimeout
            assert "(timeout 0.2 s) for the other ranks" in str(error)
        leave_broken(worker, comm)

    run_on_standin(2, body)


def test_what_nccl_or_the_device_reports_ends_the_wait():
    def lost() -> bool:
        raise CommAborted("CUDA reports at the query of an event: an illegal address")

    def body(worker: Worker) -> None:
        comm, eyes = watched(worker)
        array = ones(worker)
        work = comm.allreduce(array, array)
        if worker.rank == 0:
            work._event.done = lost  # type: ignore[attr-defined]
            words = "an illegal address"
        else:
            words = "reports: the network is down"
        eyes.wait()
        assert aborted(worker)
        error = error_of(comm.barrier)
        assert type(error) is CommAborted
        assert words in str(error)
        leave_broken(worker, comm)

    run_on_standin(2, body, lazy=True, faults={1: Faults(async_errors={1: "the network is down"})})


def test_during_a_call_the_watcher_does_not_check():
    def body(worker: Worker) -> None:
        comm, eyes = watched(worker)
        array = ones(worker)
        comm.allreduce(array, array)
        polls = worker.binding._polls
        comm._peers.gone = {1 - worker.rank: "no more"}
        with comm._lifetime:
            looks: list[bool] = []
            thread = threading.Thread(target=lambda: looks.append(eyes.look()))
            thread.start()
            thread.join()
            assert looks == [True]
        assert worker.binding._polls == polls
        comm._peers.gone = {}
        eyes.wait()
        comm.close()

    run_on_standin(2, body)


def test_no_event_is_looked_at_in_a_capture():
    def body(worker: Worker) -> None:
        comm, eyes = watched(worker)
        array = ones(worker)
        comm.allreduce(array, array)
        comm.synchronize()
        with comm.capture() as graph:
            comm.allreduce(array, array).wait()
            assert eyes.look(), "it looks again after the capture"
        assert not eyes.look()
        graph.launch()
        eyes.wait()
        del graph
        comm.close()

    run_on_standin(2, body)


def test_without_threads_in_mpi_there_is_no_watcher():
    def body(worker: Worker) -> None:
        peers: Any = HostWithFarewells(worker.peers.duplicate())
        peers.thread_multiple = False
        eyes: Any = Eyes()
        comm = NcclCommunicator(peers, worker.binding, worker.streams, worker.kernels, watcher=eyes)
        array = ones(worker)
        comm.allreduce(array, array)
        assert eyes.added == []
        comm.close()

    run_on_standin(2, body)


def test_a_mismatch_is_found_in_a_wait_of_cupy_and_breaks_the_store():
    def body(worker: Worker) -> str:
        comm, eyes = watched(worker)
        with use_buffers(StandInBuffers(worker)):
            kv = KVStore("nccl", comm, Options())
            kv.init(["a", "b"], [full(0), full(0, (5000,))])
            kv.barrier()
            key, value = ("b", full(1, (5000,))) if kv.rank else ("a", full(1))
            worker.broken_on_purpose = True
            with suppress(OrderMismatch):  # the posts may have arrived already
                kv.push(key, worker.streams.put(value))
                kv.pull(key, out=worker.streams.put(value))
            eyes.wait()
            said = str(error_of(kv.wait))
            assert type(error_of(kv.barrier)) is OrderMismatch
            kv.close()  # a broken store closes without a wait
        return said

    for said in run_on_standin(2, body):
        assert "rank 0 called push('a')" in said
        assert "rank 1 called push('b')" in said
