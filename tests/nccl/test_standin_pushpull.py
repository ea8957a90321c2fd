"""Layer 2, recording stand-in, not NCCL: the exact calls of a steady ``pushpull``.

The calls are those of a plain step, and of a step captured and replayed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cupy", reason="layer 2 needs CuPy: pip install 'ncclkv[cuda12]'")

import ncclkv.optimizer as optimizer
from tests.nccl.standin import HEADER, Worker, run_on_standin
from tests.nccl.standin.direct_calls import floats
from tests.nccl.standin.stores import StandInStores

pytestmark = pytest.mark.limit(20)
KEPT = Path(__file__).parent / "kept"
KEYS = ["a", "b", "c", "d"]
BUCKETS = {"a": 0, "b": 0, "c": 1, "d": 2}
"""Buckets of keys: a and b share one of 1 KiB, the others have one each."""


def store(create: StandInStores, worker: Worker) -> Any:
    """Create four keys in three named buckets, with an optimizer."""
    kv = create(bucket_bytes=1024)
    kv.set_optimizer(optimizer.SGD(learning_rate=1.0, momentum=0.5))
    kv.init(KEYS, [np.full(n, 9, np.float32) for n in (64, 64, 200, 250)])
    for key, number in BUCKETS.items():
        worker.device.memory.name(kv.grad_view(key), f"gradients {number}")
        worker.device.memory.name(kv.value(key), f"weights {number}")
    return kv


def steady(body: Any, name: str, size: int, update_on: str) -> None:
    """Compare the calls of a step with the stored ones, on every rank."""

    def on_worker(worker: Worker) -> list[str]:
        with StandInStores(worker, update_on) as create:
            kv = store(create, worker)
            once = body(kv, worker)
            for _ in range(2):
                once()
                kv.wait()
            with worker.calls() as lines:
                once()
        return lines

    for rank, lines in enumerate(run_on_standin(size, on_worker, lazy=True)):
        assert lines == kept(name, rank, size), f"rank {rank}"


def captured(name: str, size: int, update_on: str) -> None:
    """Compare a capture of a pushpull, and two replays of it, with the stored calls."""

    def on_worker(worker: Worker) -> list[str]:
        with StandInStores(worker, update_on) as create:
            kv = store(create, worker)
            once = with_arrays(kv, worker)
            for _ in range(2):
                once()
                kv.wait()
            # The host waits once meanwhile, which advances the device without another call.
            with worker.log.section() as lines, kv.capture() as step:
                once()
            kv.wait()
            with worker.calls() as replays:
                step.replay()
                step.replay()
        return lines + replays[1:]

    for rank, lines in enumerate(run_on_standin(size, on_worker, lazy=True)):
        assert lines == kept(name, rank, size), f"rank {rank}"


def kept(name: str, rank: int, size: int) -> list[str]:
    """Return the calls in a file; a rank alone gathers nothing from others."""
    lines = (KEPT / name.format(rank=min(rank, 1))).read_text().splitlines()
    assert lines[0] == HEADER
    return [line for line in lines if size > 1 or line != "hosts: allgather"]


def with_arrays(kv: Any, worker: Worker) -> Any:
    """Make a step with the user's arrays: packed, reduced and updated, unpacked."""
    gradients = [floats(worker, *[1.0] * kv.spec(key).size) for key in KEYS]
    outs = [floats(worker, *[0.0] * kv.spec(key).size) for key in KEYS]
    for key, gradient, out in zip(KEYS, gradients, outs, strict=True):
        worker.device.memory.name(gradient, f"gradient of {key}")
        worker.device.memory.name(out, f"out of {key}")
    return lambda: kv.pushpull(KEYS, gradients, outs)


def with_views(kv: Any, worker: Worker) -> Any:
    """Make a step with the store's own arrays, without copies."""

    def once() -> None:
        kv.push(KEYS, [kv.grad_view(key) for key in KEYS])
        for key in KEYS:
            kv.value(key)

    return once


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_a_pushpull_of_arrays(size: int) -> None:
    steady(with_arrays, "pushpull_arrays.txt", size, "every_rank")


@pytest.mark.parametrize("size", [2, 4])
def test_a_pushpull_of_arrays_with_a_root(size: int) -> None:
    steady(with_arrays, "pushpull_root_{rank}.txt", size, "root")


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_a_push_of_views(size: int) -> None:
    steady(with_views, "push_views.txt", size, "every_rank")


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_a_captured_pushpull(size: int) -> None:
    captured("captured.txt", size, "every_rank")


@pytest.mark.parametrize("size", [2, 4])
def test_a_captured_pushpull_with_a_root(size: int) -> None:
    captured("captured_root_{rank}.txt", size, "root")


@pytest.mark.parametrize("size", [2, 3, 4])
def test_a_sharded_pushpull_takes_two_collectives_a_bucket(size: int) -> None:
    """Buckets are padded to equal parts, which NCCL needs for its own two collectives."""

    def on_worker(worker: Worker) -> list[str]:
        with StandInStores(worker, "sharded") as create:
            once = with_arrays(store(create, worker), worker)
            once()
            with worker.calls() as lines:
                once()
        return [line.split("(")[0] for line in lines if "(count=" in line]

    expected = ["reduce_scatter"] * 3 + ["all_gather"] * 3
    assert run_on_standin(size, on_worker, lazy=True) == [expected] * size
