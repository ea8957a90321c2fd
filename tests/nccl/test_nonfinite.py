"""Layer 2, recording stand-in, not NCCL: NaN found by the device, without a wait of the host."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("cupy", reason="layer 2 needs CuPy: pip install 'ncclkv[cuda12]'")

import ncclkv
from ncclkv.errors import NonFinite
from tests.harness.context import context_of
from tests.nccl.standin import Worker, run_on_standin
from tests.nccl.standin.direct_calls import floats
from tests.nccl.standin.stores import StandInStores

pytestmark = pytest.mark.limit(30)


def exchanges(kv: Any) -> list[str]:
    """Record the names of all later object exchanges between hosts."""
    said: list[str] = []
    control = context_of(kv).comm.control
    plain = control.allgather

    def allgather(item: Any, label: str = "") -> list[Any]:
        said.append(label)
        found: list[Any] = plain(item, label)
        return found

    control.allgather = allgather
    return said


@pytest.mark.parametrize("update_on", ["every_rank", "root"])
def test_hosts_raise_when_they_wait(update_on: str) -> None:
    def body(worker: Worker) -> None:
        with StandInStores(worker, update_on) as create:
            kv = create(nonfinite="skip_step")
            kv.init(["a", "b"], [np.ones(2, np.float32), np.ones(2, np.float32)])
            kv.set_optimizer(ncclkv.optimizer.SGD(learning_rate=1.0))
            kv.pushpull(
                ["a", "b"], [floats(worker, 1, 1)] * 2, [floats(worker, 0, 0) for _ in "ab"]
            )
            said, outs = exchanges(kv), [floats(worker, 0, 0) for _ in "ab"]
            bad = floats(worker, np.nan if worker.rank == 1 else 5, 5)
            for _ in range(2):
                kv.pushpull(["a", "b"], [floats(worker, 5, 5), bad], outs)
            assert said == []
            for out in outs:
                assert worker.streams.get(out).tolist() == [1 - worker.size] * 2
            assert kv.skipped == 0
            kv.wait()
            assert said == ["the keys with NaN or infinity"]
            assert kv.skipped == 2
            kv.pushpull(["a", "b"], [floats(worker, 1, 1)] * 2, outs)
            kv.wait()
            assert len(said) == 1
            for out in outs:
                assert worker.streams.get(out).tolist() == [1 - 2 * worker.size] * 2

    run_on_standin(3, body, lazy=True)


def test_close_makes_the_last_report() -> None:
    def body(worker: Worker) -> None:
        kv = StandInStores(worker, "every_rank").open(update_on="every_rank", nonfinite="raise")
        kv.init("a", np.ones(2, np.float32))
        kv.push("a", floats(worker, np.inf if worker.rank == 0 else 5, 5))
        with pytest.raises(NonFinite, match="key 'a' on rank 0;"):
            kv.close()
        kv.close()

    run_on_standin(2, body, lazy=True)


def test_keys_added_later_have_flags() -> None:
    def body(worker: Worker) -> None:
        with StandInStores(worker, "every_rank") as create:
            kv = create(nonfinite="skip_step")
            for number in range(3):
                kv.init(number, np.zeros(2, np.float32))
                kv.push(number, floats(worker, np.nan if number == worker.rank else 1, 1))
                kv.wait()
            # Ranks 0 and 1 each push a NaN in one flush.
            assert kv.skipped == 2
            assert worker.streams.get(kv.value(2)).tolist() == [2, 2]

    run_on_standin(2, body, lazy=True)


def test_flags_outlive_their_copy_for_further_keys() -> None:
    """Check that another stream than that of the flags may copy them."""

    def body(worker: Worker) -> None:
        other = worker.device.stream("another stream")
        with StandInStores(worker, "every_rank") as create:
            kv = create(nonfinite="skip_step")
            for key in "ab":
                kv.init(key, np.ones(2, np.float32))
                kv.push(key, floats(worker, 1, np.nan if key == "a" else 1))
                worker.streams.wait(other, worker.streams.record(0))
                with worker.streams.on(other):
                    kv.pull(key)
            kv.wait()
            assert kv.skipped == 1

    run_on_standin(2, body, lazy=True)
