"""Layer 2, recording stand-in, not NCCL: updates in a graph that a flag on the device skips."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("cupy", reason="layer 2 needs CuPy: pip install 'ncclkv[cuda12]'")

from ncclkv.engine.capture import RecordingKernels
from tests.nccl.standin import Seat, run_seats
from tests.nccl.standin.drive import floats
from tests.updates import rows, segments_of

pytestmark = pytest.mark.limit(30)
STEP: dict[str, Any] = {"momentum": 0.0, "weight_decay": 0.0, "rescale": 1.0, "clip": None}


def flag_of(seat: Seat) -> Any:
    """Return an int32 array of 0."""
    return seat.streams.put(np.zeros(1, np.int32))


def test_each_replay_decides_anew_and_alike_on_all_ranks() -> None:
    """Check flags without a host: found, reduced and read in the order of streams."""

    def body(seat: Seat) -> None:
        comm, kernels = seat.communicator(), seat.kernels
        gradients, sums = floats(seat, 1, 2), floats(seat, 0, 0)
        stepped, replaced, flag = floats(seat, 9, 9), floats(seat, 0, 0), flag_of(seat)
        row = seat.streams.put(rows(learning_rate=1.0, **STEP))
        comm.synchronize()
        with comm.capture() as graph:
            kernels.fill(flag, 0)
            kernels.find_nonfinite(gradients, flag)
            comm.allreduce(flag, flag, "max").wait()
            comm.allreduce(gradients, sums).wait()
            kernels.update("sgd", stepped, sums, (), row, segments_of(0, 2), flag)
            kernels.assign(sums, replaced, flag)

        def replay(*values: float) -> tuple[list[float], list[float], list[int]]:
            seat.streams.write(gradients, np.array(values, np.float32))
            graph.launch().wait()
            found: Any = [seat.streams.get(x).tolist() for x in (stepped, replaced, flag)]
            return tuple(found)

        assert replay(1, 2) == ([6, 3], [3, 6], [0])
        assert replay(np.nan if seat.rank == 1 else 5, 1) == ([6, 3], [3, 6], [1])
        assert replay(1, -np.inf if seat.rank == 2 else 1) == ([6, 3], [3, 6], [1])
        assert replay(1, 1) == ([3, 0], [3, 3], [0])
        comm.close()

    run_seats(3, body, lazy=True)


def test_a_captured_step_keeps_flags_and_scalars() -> None:
    def body(seat: Seat) -> None:
        kept: list[Any] = []
        kernels = RecordingKernels(seat.kernels, 0, kept)
        row = seat.streams.put(rows(learning_rate=0.5, **STEP))
        weights, gradients = floats(seat, 1), floats(seat, np.inf)
        flags = [flag_of(seat) for _ in range(3)]
        kernels.find_nonfinite(gradients, flags[0])
        kernels.assign(gradients, weights, flags[0])
        kernels.update("sgd", weights, gradients, (), row, segments_of(0, 1), flags[0])
        assert seat.streams.get(weights).tolist() == [1]
        seat.streams.write(gradients, np.array([4], np.float32))
        kernels.update("sgd", weights, gradients, (), row, segments_of(0, 1), flags[1])
        assert seat.streams.get(weights).tolist() == [-1]
        kernels.assign(gradients, weights, flags[2])
        assert seat.streams.get(weights).tolist() == [4]
        assert all(any(needed is each for each in kept) for needed in (*flags, row))

    run_seats(1, body)
