"""Layer 2, recording stand-in, not NCCL: no memory is freed while a stream uses it."""

from __future__ import annotations

import gc

import numpy as np
import pytest

pytest.importorskip("cupy", reason="layer 2 needs CuPy: pip install 'ncclkv[cuda12]'")

import ncclkv.optimizer as optimizer
from tests.nccl.standin import Worker, run_on_standin
from tests.nccl.standin.direct_calls import floats
from tests.nccl.standin.stores import StandInStores

pytestmark = pytest.mark.limit(30)


def test_first_values_outlive_a_first_push_on_another_stream() -> None:
    def body(worker: Worker) -> list[float]:
        other = worker.device.stream("another stream")
        with StandInStores(worker, "every_rank") as create:
            kv = create()
            kv.init("w", np.zeros(3, np.float32))
            kv.wait()
            with worker.streams.on(other):
                kv.push("w", np.ones(3, np.float32))
            kv.wait()
            return kv.pull("w", out=None).get().tolist()

    assert run_on_standin(2, body, lazy=True) == [[2.0] * 3] * 2


def test_first_values_outlive_a_first_pull_on_another_stream() -> None:
    def body(worker: Worker) -> list[float]:
        other = worker.device.stream("another stream")
        with StandInStores(worker, "every_rank") as create:
            kv = create(nonfinite="raise")
            kv.set_updater(lambda key, total, stored: None)  # flushes give all keys their slots
            kv.init("w", np.ones(3, np.float32))
            with worker.streams.on(other):
                kv.pull("w")
                return kv.pull("w").get().tolist()  # the store drops the first prepared pull

    assert run_on_standin(2, body, lazy=True) == [[1.0] * 3] * 2


def test_what_a_group_copied_outlives_its_end_on_another_stream() -> None:
    def body(worker: Worker) -> list[float]:
        other = worker.device.stream("another stream")
        with StandInStores(worker, "every_rank") as create:
            kv = create()
            kv.init("w", np.zeros(3, np.float32))
            kv.push("w", np.ones(3, np.float32))
            kv.wait()
            mine = floats(worker, 1, 1, 1)
            worker.streams.wait(other, worker.streams.record(0))
            with kv.group(), worker.streams.on(other):
                kv.push("w", [mine, mine])
            kv.wait()
            return kv.pull("w").get().tolist()

    assert run_on_standin(2, body, lazy=True) == [[4.0] * 3] * 2


@pytest.mark.parametrize("trained", [False, True])
def test_a_dropped_store_keeps_what_is_under_way(trained: bool) -> None:
    def body(worker: Worker) -> None:
        kv = StandInStores(worker, "every_rank").open(update_on="every_rank")
        kv.init("w", np.zeros(3, np.float32))
        if trained:
            kv.set_optimizer(optimizer.SGD(learning_rate=1.0, momentum=0.5))
        kv.push("w", np.ones(3, np.float32))
        kv.wait()
        kv.push("w", floats(worker, 1, 1, 1))
        del kv
        gc.collect()
        worker.device.check()
        worker.peers.control.barrier()
        worker.broken_on_purpose = True  # the other ranks' ends of the store are closed, too

    run_on_standin(2, body, lazy=True)
