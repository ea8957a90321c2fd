"""Layer 2, recording stand-in, not NCCL: updates in a graph that a flag on the device skips."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("cupy", reason="layer 2 needs CuPy: pip install 'ncclkv[cuda12]'")

from ncclkv.engine.capture import RecordingKernels
from tests.nccl.standin import Worker, run_on_standin
from tests.nccl.standin.direct_calls import floats
from tests.sgd_steps import rows, segments_of

pytestmark = pytest.mark.limit(30)
STEP: dict[str, Any] = {"momentum": 0.0, "weight_decay": 0.0, "rescale": 1.0, "clip": None}


def flag_of(worker: Worker) -> Any:
    """Return an int32 array of 0."""
    return worker.streams.put(np.zeros(1, np.int32))


def test_each_replay_decides_anew_and_alike_on_all_ranks() -> None:
    """Check flags without a host: found, reduced and read in the order of streams."""

    def body(worker: Worker) -> None:
        comm, kernels = worker.communicator(), worker.kernels
        gradients, sums = floats(worker, 1, 2), floats(worker, 0, 0)
        stepped, replaced, flag = floats(worker, 9, 9), floats(worker, 0, 0), flag_of(worker)
        row = worker.streams.put(rows(learning_rate=1.0, **STEP))
        comm.synchronize()
        with comm.capture() as graph:
            kernels.fill(flag, 0)
            kernels.find_nonfinite(gradients, flag)
            comm.allreduce(flag, flag, "max").wait()
            comm.allreduce(gradients, sums).wait()
            kernels.update("sgd", stepped, sums, (), row, segments_of(0, 2), flag)
            kernels.assign(sums, replaced, flag)

        def replay(*values: float) -> tuple[list[float], list[float], list[int]]:
            worker.streams.write(gradients, np.array(values, np.float32))
            graph.launch().wait()
            found: Any = [worker.streams.get(x).tolist() for x in (stepped, replaced, flag)]
            return tuple(found)

        assert replay(1, 2) == ([6, 3], [3, 6], [0])
        assert replay(np.nan if worker.rank == 1 else 5, 1) == ([6, 3], [3, 6], [1])
        assert replay(1, -np.inf if worker.rank == 2 else 1) == ([6, 3], [3, 6], [1])
        assert replay(1, 1) == ([3, 0], [3, 3], [0])
        comm.close()

    run_on_standin(3, body, lazy=True)


def test_a_captured_step_keeps_flags_and_scalars() -> None:
    def body(worker: Worker) -> None:
        kept: list[Any] = []
        kernels = RecordingKernels(worker.kernels, 0, kept)
        row = worker.streams.put(rows(learning_rate=0.5, **STEP))
        weights, gradients = floats(worker, 1), floats(worker, np.inf)
        flags = [flag_of(worker) for _ in range(3)]
        kernels.find_nonfinite(gradients, flags[0])
        kernels.assign(gradients, weights, flags[0])
        kernels.update("sgd", weights, gradients, (), row, segments_of(0, 1), flags[0])
        assert worker.streams.get(weights).tolist() == [1]
        worker.streams.write(gradients, np.array([4], np.float32))
        kernels.update("sgd", weights, gradients, (), row, segments_of(0, 1), flags[1])
        assert worker.streams.get(weights).tolist() == [-1]
        kernels.assign(gradients, weights, flags[2])
        assert worker.streams.get(weights).tolist() == [4]
        assert all(any(needed is each for each in kept) for needed in (*flags, row))

    run_on_standin(1, body)
