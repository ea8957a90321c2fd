"""Layer 2, recording stand-in, not NCCL: the exact calls of a steady step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cupy", reason="layer 2 needs CuPy: pip install 'ncclkv[cuda12]'")

from ncclkv.comm.nccl.communicator import NcclCommunicator
from tests.nccl.standin import HEADER, Worker, run_on_standin
from tests.nccl.standin.direct_calls import floats
from tests.sgd_steps import segments_of

pytestmark = pytest.mark.limit(20)
KEPT = Path(__file__).parent / "kept" / "three_buckets.txt"
ROW = np.array([[1.0, 0.0, 0.0, 1.0, -1.0]])
"""Scalars of the program ``sgd``: a learning rate of 1, and no other effect."""


def step(worker: Worker, comm: NcclCommunicator, pairs: list, row: Any, out: Any) -> None:
    """Pack, reduce and update each of three buckets, then read one."""
    works = []
    for gradients, weights in pairs:
        worker.kernels.pack(np.ones(gradients.size, np.float32), gradients)

        def apply(lo: int, hi: int, gradients=gradients, weights=weights) -> None:
            worker.kernels.update("sgd", weights, gradients, (), row, segments_of(lo, hi))

        works.append(comm.reduction(gradients, gradients).launch(apply))
    for work in works:
        work.wait()
    worker.kernels.unpack(pairs[0][1], out)


@pytest.mark.parametrize("lazy", [False, True], ids=["prompt", "lazy"])
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_a_steady_step_of_three_buckets_is_as_kept(size: int, lazy: bool) -> None:
    def body(worker: Worker) -> list[str]:
        comm = worker.communicator()
        pairs = [(floats(worker, *[0.0] * n), floats(worker, *[5.0] * n)) for n in (4, 3, 2)]
        for number, (gradients, weights) in enumerate(pairs):
            worker.device.memory.name(gradients, f"gradients {number}")
            worker.device.memory.name(weights, f"weights {number}")
        row, out = worker.streams.put(ROW), floats(worker, 0, 0, 0, 0)
        worker.device.memory.name(row, "scalars")
        worker.device.memory.name(out, "out")
        step(worker, comm, pairs, row, out)
        comm.synchronize()
        with worker.calls() as lines:
            step(worker, comm, pairs, row, out)
        assert worker.streams.get(out).tolist() == [5.0 - 2 * size] * 4
        comm.close()
        return lines

    kept = KEPT.read_text().splitlines()
    assert kept[0] == HEADER
    assert run_on_standin(size, body, lazy=lazy) == [kept] * size
