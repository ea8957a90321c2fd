"""Gradients of `ncclkv.torch.DataParallel` that a program holds over ``zero_grad()``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.harness.modules import MEAN_RANK, RANK, SIZE, Branches, Wrap, gradient, linear

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import nn  # noqa: E402

MEAN = MEAN_RANK + 1
X = torch.full((1, 2), RANK + 1.0, dtype=torch.float64)


@pytest.mark.parametrize("as_view", [True, False])
def test_a_gradient_that_is_held_keeps_its_numbers(wrap: Wrap, as_view: bool) -> None:
    model = wrap(linear(1.0), gradient_as_view=as_view)
    held = []
    for task in range(4):
        model.zero_grad()
        model(X * (task + 1)).sum().backward()
        held.append(model.module.weight.grad)
    for task, each in enumerate(held):
        assert each.reshape(-1).tolist() == pytest.approx([MEAN * (task + 1)] * 2)


def test_a_gradient_that_nobody_holds_stays_in_its_place(wrap: Wrap) -> None:
    model = wrap(linear(1.0))
    places = set()
    for _ in range(4):
        model.zero_grad()
        model(X).sum().backward()
        places.add(model.module.weight.grad.data_ptr())
    assert len(places) == 1


def of_no_rank(model: Any) -> None:
    model(X, [1]).sum().backward()


def of_rank_0(model: Any) -> None:
    model(X, [0, 1] if RANK == 0 else [1]).sum().backward()


def assigned(model: Any) -> None:
    model.module.layers[0].weight.grad = torch.ones(1, 2, dtype=torch.float64)
    model(X, [0, 1]).sum().backward()


def accumulated(model: Any) -> None:
    with model.no_sync():
        model(X, [0, 1]).sum().backward()
    model(X, [0, 1]).sum().backward()


def replaced(model: Any) -> None:
    model.module.layers[0].weight = nn.Parameter(torch.ones(1, 2, dtype=torch.float64))
    model(X, [0, 1]).sum().backward()


@pytest.mark.parametrize("later", [of_no_rank, of_rank_0, assigned, accumulated, replaced])
def test_a_held_gradient_and_other_passes(wrap: Wrap, later: Callable[[Any], None]) -> None:
    model = wrap(Branches(), find_unused_parameters=True)
    model(X * 5, [0, 1]).sum().backward()
    held = model.module.layers[0].weight.grad
    other = model.module.layers[1].weight
    for _ in range(2):
        model.zero_grad()
        later(model)
        assert held.reshape(-1).tolist() == pytest.approx([5 * MEAN] * 2)
        assert gradient(other) == pytest.approx([MEAN * (1 + (later is accumulated))] * 2)
    if later is of_no_rank:
        assert model.module.layers[0].weight.grad is None
    if later is of_rank_0:
        assert gradient(model.module.layers[0].weight) == pytest.approx([1 / SIZE] * 2)


def test_a_gradient_in_a_graph_of_the_program(wrap: Wrap) -> None:
    model = wrap(linear(1.0))
    model(X).sum().backward()
    held = model.module.weight.grad
    scale = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    loss = (held * scale).sum()
    for step in (3, 4):
        model.zero_grad()
        model(X * step).sum().backward()
    loss.backward()
    assert scale.grad.item() == pytest.approx(2 * MEAN)
    assert gradient(model.module.weight) == pytest.approx([4 * MEAN] * 2)


def test_accumulation_changes_a_held_gradient_as_in_torch(wrap: Wrap) -> None:
    model = wrap(linear(1.0))
    model(X).sum().backward()
    held = model.module.weight.grad
    model(X).sum().backward()
    assert model.module.weight.grad is held
    assert held.reshape(-1).tolist() == pytest.approx([2 * MEAN] * 2)
    model.zero_grad(set_to_none=False)
    assert held.reshape(-1).tolist() == [0.0] * 2
