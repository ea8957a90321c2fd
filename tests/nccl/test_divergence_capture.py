"""Layer 2, recording stand-in, not NCCL: stores that compare their values, and captured steps."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("cupy", reason="layer 2 needs CuPy: pip install 'ncclkv[cuda12]'")

from ncclkv.errors import Divergence
from tests.conformance.capabilities import at, here
from tests.conformance.expect import full, same, says, total
from tests.conformance.overwrite import last, together, watched, weight
from tests.nccl.standin import Seat, run_seats
from tests.nccl.standin.capabilities import DevicePlace
from tests.nccl.standin.stores import SeatStores


@pytest.mark.parametrize("update_on", ["every_rank", "root"])
def test_a_captured_step_is_compared_after_its_replays(update_on: str) -> None:
    def body(seat: Seat) -> None:
        with at(DevicePlace(seat)), SeatStores(seat, update_on) as create:
            kv = watched(create)
            gradient, out = here().put(full(kv.rank + 1)), here().put(full(0))
            kv.pushpull("w", gradient, out=out)
            with kv.capture() as step:
                kv.pushpull("w", gradient, out=out)
            for _ in range(3):
                step.replay()
            kv.wait()
            same(out, total(kv))
            if kv.rank == last(kv):
                here().write(weight(kv, "w"), np.float32(99))
            together(kv)
            with pytest.raises(Divergence) as caught:
                kv.barrier()
            says(caught.value, f"after 3 flushes values differ: of key 'w' rank {last(kv)} has")

    run_seats(3, body, lazy=True)
