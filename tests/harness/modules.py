"""Modules of torch that the ranks of a job train, and the training of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from mpi4py import MPI

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import nn  # noqa: E402

RANK, SIZE = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
MEAN_RANK = sum(range(SIZE)) / SIZE

Wrap = Callable[..., Any]
"""The fixture `wrap`: returns a `DataParallel` of a module, with the options given."""


def linear(value: float, dtype: Any = torch.float64) -> Any:
    """Return a layer of two inputs and one output whose weights are `value`."""
    layer = nn.Linear(2, 1, bias=False, dtype=dtype)
    nn.init.constant_(layer.weight, value)
    return layer


def gradient(parameter: Any) -> list[float]:
    return parameter.grad.reshape(-1).tolist()


class Branches(nn.Module):
    """Layers of which a pass uses some."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(linear(1.0) for _ in range(4))

    def forward(self, x: Any, chosen: list[int]) -> Any:
        return sum(self.layers[index](x) for index in chosen)


class Network(nn.Module):
    """A small network with convolutions, BatchNorm and linear layers."""

    def __init__(self, dtype: Any) -> None:
        super().__init__()
        self.body = nn.Sequential(
            # No biases before BatchNorm: their gradients are rounding errors alone, which Adam
            # scales to full steps.
            nn.Conv2d(1, 4, 3, padding=1, bias=False, dtype=dtype),
            nn.BatchNorm2d(4, dtype=dtype),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(64, 32, bias=False, dtype=dtype),
            nn.BatchNorm1d(32, dtype=dtype),
            nn.Tanh(),
        )
        self.head = nn.Linear(32, 3, dtype=dtype)

    def forward(self, x: Any) -> Any:
        return self.head(self.body(x))


def trained(model: Any, steps: int, dtype: Any, optimizer: Any) -> dict[str, Any]:
    """Train on this rank's batches, with accumulation in some steps; return the final state."""
    random = torch.Generator().manual_seed(17 + RANK)
    for step in range(steps):
        for micro in range(2 if step % 3 == 1 else 1):
            x = torch.randn(5, 1, 4, 4, generator=random, dtype=dtype)
            y = torch.randint(3, (5,), generator=random)
            if step % 3 == 1 and micro == 0:
                with model.no_sync():
                    nn.functional.cross_entropy(model(x), y).backward()
            else:
                nn.functional.cross_entropy(model(x), y).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=step % 2 == 0)
    return {
        name.removeprefix("module."): value.clone() for name, value in model.state_dict().items()
    }
