"""The store of an `ncclkv.torch.DataParallel`, which keeps sums of gradients and no values."""

from __future__ import annotations

from typing import Any

import pytest

import ncclkv
from ncclkv.errors import Divergence
from tests.harness.context import context_of
from tests.harness.modules import MEAN_RANK, RANK, SIZE, Branches, gradient, linear

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import nn  # noqa: E402

from ncclkv.torch import DataParallel  # noqa: E402

X = torch.full((1, 2), RANK + 1.0, dtype=torch.float64)
MEAN = MEAN_RANK + 1


def test_wrapping_allocates_gradients_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    layers = [nn.Linear(256, 256) for _ in range(8)]
    with ncclkv.create("dist_sync", timeout=20) as kv:
        comm = context_of(kv).comm
        allocated = []

        def counting(name: str) -> Any:
            allocate = getattr(comm, name)

            def call(nbytes: int, *more: Any) -> Any:
                allocated.append(nbytes)
                return allocate(nbytes, *more)

            return call

        for name in ("allocate", "node_shared"):
            monkeypatch.setattr(comm, name, counting(name))
        model = DataParallel(nn.Sequential(*layers), kv)
        needed = sum(each.numel() * 4 for each in model.parameters())
        model(torch.ones(1, 256)).sum().backward()
        # The other bytes are those of the values that all ranks take from rank 0, once.
        assert sum(allocated) <= 2.1 * needed
        assert sum(each.nbytes for each in bucket_memory(kv)) <= 1.1 * needed
        monkeypatch.undo()


def bucket_memory(kv: Any) -> list[Any]:
    """Return the arrays of all buckets, each once."""
    states = context_of(kv).engine.layout.states
    arrays = [array for state in states for array in (state.gradients, state.weights)]
    return [*{array.ctypes.data: array for array in arrays}.values()]


def test_a_store_that_compares_ranks_compares_the_sums() -> None:
    with ncclkv.create("dist_sync", timeout=20, verify_every=1) as kv:
        model = DataParallel(Branches(), kv, find_unused_parameters=True)
        for step in (1, 2, 3):
            model.zero_grad()
            with model.no_sync():
                model(step * X, range(4)).sum().backward()
            kv.wait()  # gradients are each rank's own now
            model(X, [0, 1] if RANK == 0 else [1]).sum().backward()
            assert gradient(model.module.layers[1].weight) == pytest.approx([(step + 1) * MEAN] * 2)


@pytest.mark.skipif(SIZE == 1, reason="one rank differs from no other")
def test_a_rank_with_other_sums_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    with ncclkv.create("dist_sync", timeout=20, verify_every=1) as kv:
        model = DataParallel(linear(1.0), kv)
        model(X).sum().backward()
        engine = context_of(kv).engine
        settle = engine.settle

        def corrupting(states: Any = None) -> None:
            settle(states)
            if RANK == 1:
                model.module.weight.grad[0, 0] += 1

        monkeypatch.setattr(engine, "settle", corrupting)
        with pytest.raises(Divergence, match="values differ: of key 'weight' rank 1"):
            model(X).sum().backward()
        monkeypatch.undo()


def test_skipped_steps_are_no_divergence() -> None:
    options = {"verify_every": 1, "nonfinite": "skip_step"}
    with ncclkv.create("dist_sync", timeout=20, **options) as kv:
        model = DataParallel(linear(1.0), kv)
        for _ in range(2):
            model(X if RANK else X * float("inf")).sum().backward()
            assert model.module.weight.grad is None
            model(X).sum().backward()
            assert gradient(model.module.weight) == pytest.approx([MEAN] * 2)
            model.zero_grad()
