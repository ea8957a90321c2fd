"""Layer 2, recording stand-in, not NCCL: checkpoints from host memory to a GPU's, and back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cupy", reason="layer 2 needs CuPy: pip install 'ncclkv[cuda12]'")
pytest.importorskip("safetensors", reason="safetensors is absent: the extra `checkpoint`")

import cupy

from ncclkv.optimizer import SGD
from ncclkv.testing import run_ranks
from tests.conformance.capabilities import current_buffers, use_buffers
from tests.conformance.stores import Stores
from tests.nccl.standin import Worker, run_on_standin
from tests.nccl.standin.buffers import StandInBuffers
from tests.nccl.standin.stores import StandInStores

PLACEMENTS = ("every_rank", "root")
DTYPES = ["float16", "float32", "float64"]


def begin(kv: Any) -> list[bytes]:
    """Make a first step in each dtype."""
    kv.init(DTYPES, [np.full(5, 1.5, dtype) for dtype in DTYPES])
    kv.set_optimizer(SGD(learning_rate=0.5, momentum=0.5))
    return step(kv)


def step(kv: Any) -> list[bytes]:
    """Make a step that is exact in every dtype, and return the values."""
    kv.push(DTYPES, [np.arange(5).astype(dtype) for dtype in DTYPES])
    return [current_buffers().get(kv.pull(name)).tobytes() for name in DTYPES]


@pytest.mark.limit(30)
@pytest.mark.parametrize("update_on", PLACEMENTS)
def test_a_checkpoint_moves_from_host_to_gpu_and_back(tmp_path: Path, update_on: str) -> None:
    def save_on_host() -> list[bytes]:
        with Stores("threads", update_on) as create:
            kv = create()
            begin(kv)
            kv.save(tmp_path / "host")
            return step(kv)

    (expected, _) = run_ranks(2, save_on_host)

    def go_on_on_gpus(worker: Worker) -> None:
        with use_buffers(StandInBuffers(worker)), StandInStores(worker, "every_rank") as create:
            kv = create()
            kv.load(tmp_path / "host")
            kv.save(tmp_path / "gpu")
            assert step(kv) == expected

    run_on_standin(2, go_on_on_gpus, lazy=True)

    def back_on_host() -> None:
        with Stores("threads", update_on) as create:
            kv = create()
            kv.load(tmp_path / "gpu")
            assert step(kv) == expected

    run_ranks(2, back_on_host)


class Momentum:
    """An updater whose states are in the memory of its gradients."""

    def __init__(self) -> None:
        self.momenta: dict[Any, Any] = {}
        self.steps = 0

    def update(self, key: Any, grad: Any, stored: Any) -> None:
        if key not in self.momenta:
            self.momenta[key] = current_buffers().put(np.zeros(grad.shape, grad.dtype))
        self.momenta[key][...] = self.momenta[key] + grad
        stored[...] = stored + self.momenta[key]
        self.steps += 1

    def state_dict(self) -> dict[Any, Any]:
        return {**self.momenta, "steps": self.steps}

    def load_state_dict(self, state: dict[Any, Any]) -> None:
        self.steps = state.pop("steps")
        self.momenta = state


def opened(create: Any, directory: Path | None) -> Any:
    """Open a store with that updater, from a checkpoint or after a first step."""
    kv = create()
    updater = Momentum()
    if directory is None:
        kv.init(["matrix", "number"], [np.ones((2, 3), np.float32), np.float64(1)])
    kv.set_updater(updater)
    if directory is not None:
        kv.load(directory)
    return kv, updater


def another_step(kv: Any) -> list[list[float]]:
    """Return the values after a push of ones."""
    kv.push(["matrix", "number"], [np.ones((2, 3), np.float32), np.float64(1)])
    outs = np.zeros((2, 3), np.float32), np.zeros(())
    kv.pull(["matrix", "number"], out=outs)
    return [np.asarray(out).reshape(-1).tolist() for out in outs]


@pytest.mark.limit(30)
def test_the_state_of_an_updater_moves_from_gpu_to_host_and_back(tmp_path: Path) -> None:
    def on_gpus(worker: Worker, came_from: Path | None, goes_to: str) -> list[list[float]]:
        with use_buffers(StandInBuffers(worker)), StandInStores(worker, "every_rank") as create:
            kv, updater = opened(create, came_from)
            values = another_step(kv)
            assert all(isinstance(each, cupy.ndarray) for each in updater.momenta.values())
            assert updater.momenta["matrix"].shape == (2, 3)
            kv.save(tmp_path / goes_to)
            return values

    def on_host() -> list[list[float]]:
        with Stores("threads", "every_rank") as create:
            kv, updater = opened(create, tmp_path / "second")
            values = another_step(kv)
            assert all(type(each) is np.ndarray for each in updater.momenta.values())
            assert updater.steps == 6
            kv.save(tmp_path / "third")
            return values

    # Sums over 2 ranks are 2; after n steps momenta are 2 n, and values 1 + 2 (1 + ... + n).
    for step, runs in enumerate(
        (
            lambda: run_on_standin(2, lambda worker: on_gpus(worker, None, "first")),
            lambda: run_on_standin(2, lambda worker: on_gpus(worker, tmp_path / "first", "second")),
            lambda: run_ranks(2, on_host),
            lambda: run_on_standin(2, lambda worker: on_gpus(worker, tmp_path / "third", "fourth")),
        ),
        start=1,
    ):
        value = 1.0 + step * (step + 1)
        assert runs() == [[[value] * 6, [value]]] * 2
