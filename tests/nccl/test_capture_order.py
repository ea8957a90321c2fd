"""Layer 2, recording stand-in, not NCCL: replays are ordered on CuPy's current stream."""

from __future__ import annotations

import pytest

pytest.importorskip("cupy", reason="layer 2 needs CuPy: pip install 'ncclkv[cuda12]'")

from tests.conformance.capabilities import use_buffers
from tests.conformance.captures_all import Ready
from tests.conformance.expect import same, total
from tests.nccl.captures import opened
from tests.nccl.standin import Worker, run_on_standin
from tests.nccl.standin.buffers import StandInBuffers
from tests.nccl.standin.stores import StandInStores

pytestmark = pytest.mark.limit(30)
PLACEMENTS = pytest.mark.parametrize("update_on", ["every_rank", "root"])


@PLACEMENTS
def test_replays_follow_the_current_stream(update_on: str) -> None:
    def body(worker: Worker) -> None:
        other = worker.device.stream("another stream")
        with use_buffers(StandInBuffers(worker)), StandInStores(worker, update_on) as create:
            ready = Ready(create)
            kv, streams = ready.kv, worker.streams
            step = ready.step()
            streams.wait(other, streams.record(streams.current()))
            with streams.on(other):
                streams.write(ready.gradients[0], kv.rank + 5)
                step.replay()
                same(ready.outs[0], total(kv) + 4 * kv.num_workers)
                streams.write(ready.gradients[0], kv.rank + 6)
            # The first stream again, ordered after the other one.
            step.replay()
            same(ready.outs[0], total(kv) + 5 * kv.num_workers)
            with streams.on(other):
                kv.pushpull(ready.keys, ready.gradients, ready.outs)
                same(ready.outs[0], total(kv) + 5 * kv.num_workers)

    run_on_standin(3, body, lazy=True)


def test_a_read_without_order_is_caught() -> None:
    def body(worker: Worker) -> None:
        other = worker.device.stream("another stream")
        with use_buffers(StandInBuffers(worker)):
            ready = opened(worker)
            step = ready.step()
            step.replay()
            with (
                pytest.raises(AssertionError, match="nothing orders it after unpack_all"),
                worker.streams.on(other),
            ):
                worker.streams.get(ready.outs[0])
            worker.broken_on_purpose = True
            worker.device.mend()

    run_on_standin(2, body, lazy=True)
