"""Layer 2, recording stand-in, not NCCL: programs, put on the stream to their end at the launch."""

from __future__ import annotations

import pytest

pytest.importorskip("cupy", reason="layer 2 needs CuPy: pip install 'ncclkv[cuda12]'")

import gc
import weakref
from typing import Any

import numpy as np

from ncclkv.comm.base import Collective
from ncclkv.comm.nccl.communicator import NcclCommunicator
from ncclkv.comm.transport import Steps
from ncclkv.comm.types import Apply
from ncclkv.comm.wire import Wire
from ncclkv.errors import CommTimeout, UsageError
from tests.nccl.standin import Worker, run_on_standin
from tests.nccl.standin.direct_calls import floats

pytestmark = pytest.mark.limit(60)


def total(comm: NcclCommunicator, own: Any, received: Any, scratch: int = 8) -> Collective:
    """Return a program that sums two elements of each rank: all read all."""
    # Weak: only `kept` must keep the arrays alive.
    arrays = [weakref.ref(own), weakref.ref(received)]

    def steps(wire: Wire, apply: Apply | None) -> Steps:
        mine, total = (each() for each in arrays)
        parts = yield from wire.read(mine, lambda reader, owner: (0, 2))
        wire.fold(parts, total, "sum")
        if apply is not None:
            apply(0, 2)

    return comm.program(steps, what="a test", nbytes=8, scratch=scratch, kept=[own, received])


def test_a_program_runs_to_its_end_at_the_launch() -> None:
    def body(worker: Worker) -> None:
        comm, called = worker.communicator(), []
        own, received = floats(worker, 1 + worker.rank, 2), floats(worker, 0, 0)
        work = total(comm, own, received).launch(lambda lo, hi: called.append((lo, hi)))
        assert called == [(0, 2)]
        assert str(work) == "a test of 8 bytes"
        work.wait()
        assert worker.streams.get(received).tolist() == [3, 4]
        comm.close()

    run_on_standin(2, body, lazy=True)


def test_the_ranks_connect_before_the_first_program() -> None:
    def body(worker: Worker) -> None:
        comm = worker.communicator()
        own, received = floats(worker, 1, 2), floats(worker, 0, 0)
        program = total(comm, own, received)
        program.launch().wait()
        program.launch().wait()
        connects = [line for line in worker.log.lines if line.startswith("connect communicator")]
        assert len(connects) == 1
        comm.close()

    run_on_standin(2, body)


def test_a_rank_that_does_not_connect_is_named_with_the_program() -> None:
    def late(*_: object) -> None:
        raise CommTimeout("NCCL 2.32.3: ncclGroupEnd waited 300 s for the other ranks")

    def body(worker: Worker) -> None:
        comm = worker.communicator()
        worker.binding.connect = late  # type: ignore[method-assign]
        program = total(comm, floats(worker, 1, 2), floats(worker, 0, 0))
        words = rf"rank {worker.rank} of 2: a test of 8 bytes \(connecting the ranks\): NCCL"
        with pytest.raises(CommTimeout, match=words):
            program.launch()
        worker.peers.control.barrier("the test is over")
        comm.abort("the test is over")

    run_on_standin(2, body)


def test_the_arrays_live_as_long_as_the_work() -> None:
    def body(worker: Worker) -> None:
        comm: NcclCommunicator = worker.communicator()
        own, received = floats(worker, 1, 2), floats(worker, 0, 0)
        work = total(comm, own, received).launch()
        arrays = weakref.ref(own), weakref.ref(received)
        del own, received
        gc.collect()
        assert all(each() is not None for each in arrays)
        work.wait()
        assert worker.streams.get(arrays[1]()).tolist() == [2, 4]
        comm.synchronize()
        gc.collect()
        assert all(each() is None for each in arrays)
        comm.close()

    run_on_standin(2, body, lazy=True)


def test_a_program_is_captured_and_its_graph_keeps_its_arrays() -> None:
    def body(worker: Worker) -> None:
        comm: NcclCommunicator = worker.communicator()
        own, received = floats(worker, 1, 2), floats(worker, 0, 0)
        program = total(comm, own, received)
        program.launch().wait()
        comm.synchronize()
        with comm.capture() as graph:
            program.launch().wait()
        assert graph.calls == ["a test of 8 bytes"]
        longer = floats(worker, *[1.0] * 50_000)
        comm.program(
            lambda wire, apply: all_of(wire, longer), what="a longer test", scratch=200_000
        ).launch().wait()
        arrays = weakref.ref(own), weakref.ref(received)
        worker.streams.write(own, np.array([5, 6], np.float32))
        comm.synchronize()
        del own, received, program
        gc.collect()
        graph.launch().wait()
        comm.synchronize()
        assert worker.streams.get(arrays[1]()).tolist() == [10, 12]
        del graph
        gc.collect()
        assert all(each() is None for each in arrays), "a graph that is gone keeps arrays"
        comm.close()

    run_on_standin(2, body, lazy=True)


def all_of(wire: Wire, own: Any) -> Steps:
    """Read all of every rank's array, and drop it."""
    yield from wire.read(own, lambda reader, owner: (0, own.size))


def test_a_first_program_is_refused_in_a_capture() -> None:
    def body(worker: Worker) -> None:
        comm = worker.communicator()
        program = total(comm, floats(worker, 1, 2), floats(worker, 0, 0))
        with (
            pytest.raises(UsageError, match="not connected .* make the same step once before"),
            comm.capture(),
        ):
            program.launch()
        program.launch().wait()
        large = total(comm, floats(worker, 1, 2), floats(worker, 0, 0), scratch=100_000)
        comm.synchronize()
        with (
            pytest.raises(
                UsageError, match="programs such as a test of 8 bytes need .* bytes of scratch"
            ),
            comm.capture(),
        ):
            large.launch()
        large.launch().wait()
        comm.close()

    run_on_standin(2, body, lazy=True)


def test_more_scratch_memory_than_stated_is_refused() -> None:
    def body(worker: Worker) -> None:
        comm = worker.communicator()
        own = floats(worker, *[1.0] * 1000)
        program = comm.program(lambda wire, apply: all_of(wire, own), what="a test", scratch=8)
        with pytest.raises(UsageError, match="needs 8192 bytes of scratch memory, and stated"):
            program.launch()
        with pytest.raises(UsageError, match="scratch memory"):
            comm.barrier()
        worker.peers.control.barrier("the test is over")
        comm.abort("the test is over")

    run_on_standin(3, body)


def test_a_step_makes_no_call_that_ranks_share() -> None:
    def body(worker: Worker) -> None:
        comm = worker.communicator()
        own = floats(worker, 1.0)

        def steps(wire: Wire, apply: Apply | None) -> Steps:
            for call in (lambda: comm.allreduce(own, own), comm.synchronize, comm.barrier):
                with pytest.raises(UsageError, match="was called inside 'apply'"):
                    call()
            yield from ()

        comm.program(steps, what="a test").launch().wait()
        comm.allreduce(own, own).wait()
        assert worker.streams.get(own).tolist() == [2.0]
        comm.close()

    run_on_standin(2, body)


def test_kernels_of_a_step_are_on_the_communication_stream() -> None:
    def body(worker: Worker) -> None:
        comm, seen = worker.communicator(), []

        def steps(wire: Wire, apply: Apply | None) -> Steps:
            seen.append(worker.streams.current())
            yield from ()

        before = worker.streams.current()
        comm.program(steps, what="a test").launch().wait()
        assert seen == [worker.streams.communication]
        assert worker.streams.current() == before != seen[0]
        comm.close()

    run_on_standin(2, body)


def test_an_error_in_a_step_breaks_the_communicator() -> None:
    def body(worker: Worker) -> None:
        comm = worker.communicator()

        def steps(wire: Wire, apply: Apply | None) -> Steps:
            yield []
            raise ZeroDivisionError("in a step")

        with pytest.raises(ZeroDivisionError, match="in a step"):
            comm.program(steps, what="a test").launch()
        with pytest.raises(Exception, match="a test was interrupted by ZeroDivisionError"):
            comm.barrier()
        worker.peers.control.barrier("the test is over")
        comm.abort("the test is over")

    run_on_standin(2, body)


def test_a_rank_that_is_alone_needs_no_connection() -> None:
    def body(worker: Worker) -> None:
        comm = worker.communicator()
        own, received = floats(worker, 1, 2), floats(worker, 0, 0)
        total(comm, own, received).launch().wait()
        assert worker.streams.get(received).tolist() == [1, 2]
        assert not any(line.startswith("connect") for line in worker.log.lines)
        comm.close()

    run_on_standin(1, body)
