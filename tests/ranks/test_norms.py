"""Updates by norms, over MPI: ranks that share weights read what all of them have written."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import ncclkv
from ncclkv.kernels.host import HostKernels
from ncclkv.optimizer import LARS, SGD, Optimizer

LARGE = 1 << 16
"""Elements of a key whose weights the ranks of a node share."""

MAKERS = {
    "by key": lambda: LARS(learning_rate=1.0, eta=0.5),
    "of all": lambda: SGD(learning_rate=1.0, clip_global_norm=LARGE),
}


@pytest.mark.limit(60)
@pytest.mark.parametrize("late", range(MPI.COMM_WORLD.size))
@pytest.mark.parametrize("kind", MAKERS)
def test_a_pull_waits_for_the_update_of_a_late_rank(
    kind: str, late: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    update = HostKernels.update

    def slowly(*args: Any, **options: Any) -> None:
        time.sleep(0.1)
        update(*args, **options)

    optimizer: Optimizer = MAKERS[kind]()
    with ncclkv.create("dist_sync") as kv:
        kv.init("w", np.full(LARGE, 2.0, np.float32), op="avg")
        kv.set_optimizer(optimizer)
        if kv.rank == late:
            monkeypatch.setattr(HostKernels, "update", staticmethod(slowly))
        kv.push("w", np.full(LARGE, 1.0, np.float32))
        found = np.asarray(kv.pull("w"))
    np.testing.assert_array_equal(found, 1.0)
