"""Layer 2, recording stand-in, not NCCL: stores that compare their values, and captured steps."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("cupy", reason="layer 2 needs CuPy: pip install 'ncclkv[cuda12]'")

from ncclkv.errors import Divergence
from tests.conformance.capabilities import current_buffers, use_buffers
from tests.conformance.expect import check_words, full, same, total
from tests.conformance.overwrite import last, open_verified, uncounted_barrier, weight
from tests.nccl.standin import Worker, run_on_standin
from tests.nccl.standin.buffers import StandInBuffers
from tests.nccl.standin.stores import StandInStores


@pytest.mark.parametrize("update_on", ["every_rank", "root"])
def test_a_captured_step_is_compared_after_its_replays(update_on: str) -> None:
    def body(worker: Worker) -> None:
        with use_buffers(StandInBuffers(worker)), StandInStores(worker, update_on) as create:
            kv = open_verified(create)
            gradient, out = current_buffers().put(full(kv.rank + 1)), current_buffers().put(full(0))
            kv.pushpull("w", gradient, out=out)
            with kv.capture() as step:
                kv.pushpull("w", gradient, out=out)
            for _ in range(3):
                step.replay()
            kv.wait()
            same(out, total(kv))
            if kv.rank == last(kv):
                current_buffers().write(weight(kv, "w"), np.float32(99))
            uncounted_barrier(kv)
            with pytest.raises(Divergence) as caught:
                kv.barrier()
            check_words(
                caught.value, f"after 3 flushes values differ: of key 'w' rank {last(kv)} has"
            )

    run_on_standin(3, body, lazy=True)
