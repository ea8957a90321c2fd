"""Layer 2, recording stand-in, not NCCL: from host memory to a GPU's by a checkpoint, and back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cupy", reason="layer 2 needs CuPy: pip install 'ncclkv[cuda12]'")
pytest.importorskip("safetensors", reason="safetensors is absent: the extra `checkpoint`")

from ncclkv.optimizer import SGD
from ncclkv.testing import run_ranks
from tests.cases.place import at, here
from tests.cases.stores import Stores
from tests.nccl.standin import Seat, run_seats
from tests.nccl.standin.place import DevicePlace
from tests.nccl.standin.stores import SeatStores

PLACEMENTS = ("every_rank", "root")
DTYPES = ["float16", "float32", "float64"]


def begin(kv: Any) -> list[bytes]:
    """A first step in each dtype."""
    kv.init(DTYPES, [np.full(5, 1.5, dtype) for dtype in DTYPES])
    kv.set_optimizer(SGD(learning_rate=0.5, momentum=0.5))
    return step(kv)


def step(kv: Any) -> list[bytes]:
    """A step that is exact in every dtype; the values afterwards."""
    kv.push(DTYPES, [np.arange(5).astype(dtype) for dtype in DTYPES])
    return [here().get(kv.pull(name)).tobytes() for name in DTYPES]


@pytest.mark.limit(30)
@pytest.mark.parametrize("update_on", PLACEMENTS)
def test_there_and_back(tmp_path: Path, update_on: str) -> None:
    def save_on_host() -> list[bytes]:
        with Stores("threads", update_on) as create:
            kv = create()
            begin(kv)
            kv.save(tmp_path / "host")
            return step(kv)

    (expected, _) = run_ranks(2, save_on_host)

    def go_on_on_gpus(seat: Seat) -> None:
        with at(DevicePlace(seat)), SeatStores(seat, "every_rank") as create:
            kv = create()
            kv.load(tmp_path / "host")
            kv.save(tmp_path / "gpu")
            assert step(kv) == expected

    run_seats(2, go_on_on_gpus, lazy=True)

    def back_on_host() -> None:
        with Stores("threads", update_on) as create:
            kv = create()
            kv.load(tmp_path / "gpu")
            assert step(kv) == expected

    run_ranks(2, back_on_host)
