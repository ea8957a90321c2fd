"""Layer 2, recording stand-in, not NCCL: captures of a communicator without a store."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("cupy", reason="layer 2 needs CuPy: pip install 'ncclkv[cuda12]'")

from ncclkv.errors import UsageError
from tests.nccl.standin import Worker, run_on_standin
from tests.nccl.standin.direct_calls import floats

pytestmark = pytest.mark.limit(30)


def test_a_communicator_captures() -> None:
    def body(worker: Worker) -> None:
        comm, array = worker.communicator(), floats(worker, 1, 2)
        comm.synchronize()
        with comm.capture() as graph:
            work = comm.allreduce(array, array)
            work.label = "mine"
            work.wait()
            with pytest.raises(UsageError, match="synchronize was called inside a capture"):
                comm.synchronize()
            with pytest.raises(UsageError, match="capture was called inside a capture"):
                comm.capture().__enter__()
            with pytest.raises(UsageError, match="the launch of a graph was called inside a cap"):
                graph.launch()
            kept = np.zeros(1)
            comm.keep_alive(kept)
            assert any(kept is each for each in graph._kept)  # type: ignore[attr-defined]
        assert graph.calls == ["a reduction of 8 bytes to all ranks (mine)"]
        assert work.done()
        work.wait()
        assert worker.streams.get(array).tolist() == [1, 2]
        done = graph.launch()
        assert str(done) == "a captured step (collectives: 1)"
        done.wait()
        assert worker.streams.get(array).tolist() == [2, 4]
        comm.close()
        with pytest.raises(UsageError, match="the communicator is closed"):
            graph.launch()

    run_on_standin(2, body, lazy=True)


def test_a_graph_without_an_end_is_none() -> None:
    def body(worker: Worker) -> None:
        comm, array = worker.communicator(), floats(worker, 1)
        comm.synchronize()

        def fail() -> None:
            comm.allreduce(array, array)
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError), comm.capture() as graph:
            fail()
        with pytest.raises(UsageError, match="was not captured to its end, or was freed"):
            graph.launch()
        comm.allreduce(array, array).wait()
        assert worker.streams.get(array).tolist() == [2]
        comm.close()

    run_on_standin(2, body, lazy=True)


def test_a_wait_that_cuda_refuses_in_a_capture_costs_the_graph_alone() -> None:
    def body(worker: Worker) -> None:
        comm, array = worker.communicator(), floats(worker, 1)
        comm.synchronize()
        wait = worker.streams.wait

        def refuse(stream: int, event: Any) -> None:
            raise UsageError("CUDA refuses this in a capture")

        def fail() -> None:
            work = comm.allreduce(array, array)
            worker.streams.wait = refuse  # type: ignore[method-assign]
            work.wait()

        with pytest.raises(UsageError, match="CUDA refuses this"), comm.capture():
            fail()
        worker.streams.wait = wait  # type: ignore[method-assign]
        comm.allreduce(array, array).wait()
        assert worker.streams.get(array).tolist() == [2]
        comm.close()

    run_on_standin(2, body, lazy=True)
