"""Layer 2, recording stand-in, not NCCL: threads, lifetimes, and scripted faults.

Points 8, 9 and 10 of the contract, each broken on purpose, and the faults that NCCL's caller
observes.
"""

from __future__ import annotations

import re
import threading
import time

import numpy as np
import pytest

pytest.importorskip("cupy", reason="layer 2 needs CuPy: pip install 'ncclkv[cuda12]'")

from ncclkv.errors import CommAborted, CommTimeout, RankLost
from tests.nccl.standin import HEADER, Died, Faults, RefusedByStandIn, Worker, run_on_standin
from tests.nccl.standin.direct_calls import all_reduce, breaks, floats, follow

pytestmark = pytest.mark.limit(20)
MODES = pytest.mark.parametrize("lazy", [False, True], ids=["prompt", "lazy"])


# Point 8: one thread, and no creation inside a group


def test_a_communicator_belongs_to_one_thread() -> None:
    def body(worker: Worker) -> None:
        handle, array = worker.create(), floats(worker, 1)
        follow(worker)
        said: list[str] = []

        def other() -> None:
            try:
                all_reduce(worker, handle, array)
            except RefusedByStandIn as error:
                said.append(str(error))

        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        wanted = "by a thread other than the one that created it"
        assert len(said) == 1
        assert wanted in said[0]

    run_on_standin(2, body)


def test_nothing_is_created_inside_a_group() -> None:
    def body(worker: Worker) -> None:
        worker.binding.group_start()
        with breaks(worker, f"create of rank {worker.rank} inside a group"):
            worker.create()
        worker.binding.group_end()
        with breaks(worker, "group_end without a group_start"):
            worker.binding.group_end()

    run_on_standin(2, body)


# Point 9: lifetimes


@pytest.mark.parametrize("end", ["destroy", "abort"])
def test_nothing_is_used_after_its_end(end: str) -> None:
    def body(worker: Worker) -> None:
        handle, array = worker.create(), floats(worker, 1)
        follow(worker)
        getattr(worker.binding, end)(handle)
        was = f"of communicator 0 on rank {worker.rank}, which was {end}ed"
        for call in (
            lambda: all_reduce(worker, handle, array),
            lambda: worker.binding.async_error(handle),
            lambda: worker.binding.destroy(handle),
            lambda: worker.binding.abort(handle),
        ):
            with breaks(worker, was):
                call()

    run_on_standin(2, body)


def test_every_rank_destroys() -> None:
    def body(worker: Worker) -> None:
        handle = worker.create()
        if worker.rank == 0:
            with breaks(worker, "destroy of communicator 0 without every rank", "for rank 1"):
                worker.binding.destroy(handle)
        worker.peers.control.barrier()

    run_on_standin(2, body, limit=0.3)


def test_an_abort_is_no_destroy() -> None:
    def body(worker: Worker) -> None:
        handle = worker.create()
        if worker.rank:
            worker.binding.abort(handle)
        else:
            with breaks(worker, "destroy of communicator 0 without every rank", "rank 1 left"):
                worker.binding.destroy(handle)

    run_on_standin(2, body)


def test_a_destroyed_communicator_must_be_idle() -> None:
    def body(worker: Worker) -> None:
        handle, array = worker.create(), floats(worker, 1)
        follow(worker)
        all_reduce(worker, handle, array)
        with breaks(worker, f"destroy of communicator 0 on rank {worker.rank}, which is not idle"):
            worker.binding.destroy(handle)

    run_on_standin(2, body, lazy=True)


def test_a_unique_id_is_good_once() -> None:
    def body(worker: Worker) -> None:
        identity = worker.peers.control.broadcast(worker.binding.unique_id())
        assert len(identity) == 128
        worker.binding.create(2, identity, worker.rank)
        worker.peers.duplicate()
        with breaks(worker, "with a unique id that was used before"):
            worker.binding.create(2, identity, worker.rank)

    run_on_standin(2, body)


def test_ranks_pass_one_id_and_their_own_ranks() -> None:
    def body(worker: Worker) -> None:
        with breaks(
            worker, f"rank {worker.rank} and rank {1 - worker.rank} create with different ids"
        ):
            worker.binding.create(2, worker.binding.unique_id(), worker.rank)
        worker.peers.duplicate()
        with breaks(worker, f"create as rank {worker.rank} of 3: there is no such group of ranks"):
            worker.binding.create(3, worker.binding.unique_id(), worker.rank)
        with breaks(worker, "a unique id has 128 bytes, and this one 5"):
            worker.binding.create(2, b"short", worker.rank)

    run_on_standin(2, body)


@MODES
def test_a_stream_is_freed_when_it_is_empty(lazy: bool) -> None:
    def body(worker: Worker) -> None:
        handle, array = worker.create(), floats(worker, 1)
        follow(worker)
        if worker.rank == 0:
            all_reduce(worker, handle, array)
            with breaks(worker, "was freed while it had to do: all_reduce 0 of communicator 0"):
                worker.streams.close()

    run_on_standin(2, body, lazy=lazy)


# Point 10: faults that the communicator reports


@MODES
def test_a_rank_that_never_arrives_is_a_timeout(
    lazy: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    def body(worker: Worker) -> None:
        comm, array = worker.communicator(0.2), floats(worker, 1)
        comm.allreduce(array, array).wait()
        assert worker.streams.get(array).tolist() == [3]
        second = comm.allreduce(array, array)
        second.wait()
        begin = time.monotonic()
        with pytest.raises(CommTimeout) as caught:
            comm.synchronize()
        assert 0.2 <= time.monotonic() - begin < 2
        text = str(caught.value)
        assert f"rank {worker.rank} of 3: a reduction of 4 bytes to all ranks waited 0." in text
        assert HEADER in text
        assert "abort communicator" in worker.log.lines[-1]
        with pytest.raises(CommTimeout):
            second.done()
        worker.broken_on_purpose = True  # the sum is lost with its array
        worker.peers.control.barrier()
        comm.abort("over")

    run_on_standin(3, body, lazy=lazy, faults={1: Faults(absent_from=1)})
    lines = [line for line in capsys.readouterr().err.splitlines() if " has waited " in line]
    assert lines, "a wait is reported before its deadline"
    for line in lines:
        assert re.match(
            r"ncclkv: rank \d of 3 on \S+ \(pid \d+\) has waited 0\.\d s \(timeout 0\.2 s\): "
            r"a reduction of 4 bytes to all ranks waits for ranks? .*, or for the network",
            line,
        ), line


@MODES
def test_a_rank_that_dies_in_a_call_is_lost(lazy: bool) -> None:
    def body(worker: Worker) -> None:
        comm, array = worker.communicator(20), floats(worker, 1)
        comm.allreduce(array, array).wait()
        comm.synchronize()
        if worker.rank == 2:
            with pytest.raises(Died, match="rank 2 dies in call 1: broadcast"):
                comm.broadcast(array, 2)
            with pytest.raises(CommAborted, match="a broadcast .* was interrupted by Died"):
                comm.broadcast(array, 2)
            comm.abort("killed")
            return
        comm.broadcast(array, 2).wait()
        words = "rank 2 left while a broadcast of 4 bytes from rank 2 waited for it; farewell: kill"
        with pytest.raises(RankLost, match=words):
            comm.synchronize()
        worker.broken_on_purpose = True

    run_on_standin(3, body, lazy=lazy, faults={2: Faults(dies_in=1)})


def test_an_asynchronous_error_is_reported() -> None:
    said = "unhandled system error"

    def body(worker: Worker) -> None:
        comm, array = worker.communicator(20), floats(worker, 1)
        if worker.rank == 0:
            comm.allreduce(array, array).wait()
            with pytest.raises(CommAborted) as caught:
                comm.synchronize()
            text = str(caught.value)
            assert f"rank 0 of 2: a reduction of 4 bytes to all ranks: {HEADER}" in text
            assert f"2.29.7) reports: {said}" in text
            worker.broken_on_purpose = True
        worker.peers.control.barrier()
        comm.abort("over")

    run_on_standin(2, body, faults={0: Faults(async_errors={3: said})})


def test_a_close_after_a_fault_hangs_on_no_rank() -> None:
    def body(worker: Worker) -> None:
        comm, array = worker.communicator(20), floats(worker, *np.arange(4))
        comm.allreduce(array, array).wait()
        comm.synchronize()
        begin = time.monotonic()
        if worker.rank == 0:
            comm.abort("enough")
        else:
            comm.close()
        assert time.monotonic() - begin < 2
        comm.close()
        worker.broken_on_purpose = True

    run_on_standin(3, body)


def test_a_close_reports_works_in_flight_as_lost() -> None:
    def body(worker: Worker) -> None:
        comm, array = worker.communicator(20), floats(worker, *np.arange(4))
        worker.broken_on_purpose = True
        if worker.rank == 0:
            comm.abort("enough")
            return
        comm.allreduce(array, array).wait()
        with pytest.raises(RankLost, match="rank 0 left while a reduction of 16 bytes"):
            comm.close()
        comm.abort("lost rank 0")

    run_on_standin(3, body)
