"""Layer 2, recording stand-in, not NCCL: no memory is freed while a stream uses it."""

from __future__ import annotations

import gc

import numpy as np
import pytest

pytest.importorskip("cupy", reason="layer 2 needs CuPy: pip install 'ncclkv[cuda12]'")

import ncclkv.optimizer as optimizer
from tests.nccl.standin import Seat, run_seats
from tests.nccl.standin.drive import floats
from tests.nccl.standin.stores import SeatStores

pytestmark = pytest.mark.limit(30)


def test_first_values_outlive_a_first_push_on_another_stream() -> None:
    def body(seat: Seat) -> list[float]:
        other = seat.device.stream("another stream")
        with SeatStores(seat, "every_rank") as create:
            kv = create()
            kv.init("w", np.zeros(3, np.float32))
            kv.wait()
            with seat.streams.on(other):
                kv.push("w", np.ones(3, np.float32))
            kv.wait()
            return kv.pull("w", out=None).get().tolist()

    assert run_seats(2, body, lazy=True) == [[2.0] * 3] * 2


def test_what_a_group_copied_outlives_its_end_on_another_stream() -> None:
    def body(seat: Seat) -> list[float]:
        other = seat.device.stream("another stream")
        with SeatStores(seat, "every_rank") as create:
            kv = create()
            kv.init("w", np.zeros(3, np.float32))
            kv.push("w", np.ones(3, np.float32))
            kv.wait()
            mine = floats(seat, 1, 1, 1)
            seat.streams.wait(other, seat.streams.record(0))
            with kv.group(), seat.streams.on(other):
                kv.push("w", [mine, mine])
            kv.wait()
            return kv.pull("w").get().tolist()

    assert run_seats(2, body, lazy=True) == [[4.0] * 3] * 2


@pytest.mark.parametrize("trained", [False, True])
def test_a_dropped_store_keeps_what_is_under_way(trained: bool) -> None:
    def body(seat: Seat) -> None:
        kv = SeatStores(seat, "every_rank").open(update_on="every_rank")
        kv.init("w", np.zeros(3, np.float32))
        if trained:
            kv.set_optimizer(optimizer.SGD(learning_rate=1.0, momentum=0.5))
        kv.push("w", np.ones(3, np.float32))
        kv.wait()
        kv.push("w", floats(seat, 1, 1, 1))
        del kv
        gc.collect()
        seat.device.check()
        seat.peers.control.barrier()
        seat.spoilt = True  # the other ranks' ends of the store are closed, too

    run_seats(2, body, lazy=True)
