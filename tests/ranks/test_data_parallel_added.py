"""`ncclkv.torch.DataParallel` of a module that gets other parameters after it was wrapped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from mpi4py import MPI

from ncclkv.errors import OrderMismatch, SpecMismatch, UsageError
from tests.harness.modules import MEAN_RANK, RANK, SIZE, Branches, Wrap, gradient, linear

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import nn  # noqa: E402

MEAN = MEAN_RANK + 1
X = torch.full((1, 2), RANK + 1.0, dtype=torch.float64)


class Adapted(nn.Module):
    """A frozen layer beside two layers of low rank, as LoRA's."""

    def __init__(self, base: Any) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = linear(RANK + 1.0)
        self.up = nn.Linear(1, 1, bias=False, dtype=torch.float64)
        nn.init.constant_(self.up.weight, RANK + 1.0)

    def forward(self, x: Any) -> Any:
        return self.base(x) + self.up(self.down(x))


def append(module: Any) -> None:
    module.layers.append(linear(RANK + 5.0))


def replace(module: Any) -> None:
    module.layers[1].weight = nn.Parameter(torch.full((1, 2), RANK + 5.0).double())


def replace_by_another_shape(module: Any) -> None:
    layer = nn.Linear(2, 3, dtype=torch.float64)
    nn.init.constant_(layer.weight, RANK + 5.0)
    module.layers[2] = nn.Sequential(layer, nn.Flatten(), nn.AvgPool1d(3))


def remove(module: Any) -> None:
    del module.layers[1]


def move(module: Any) -> None:
    first, second = module.layers[0].weight, module.layers[1].weight
    module.layers[0].weight, module.layers[1].weight = second, first
    module.layers[2].renamed = nn.Identity()
    module.layers[2].renamed.weight = module.layers[3].weight


def adapt(module: Any) -> None:
    module.layers[3] = Adapted(module.layers[3])


CHANGES = [append, replace, replace_by_another_shape, remove, move, adapt]


def check(model: Any, numbers: range) -> None:
    """Compare gradients with the mean of the bare module's, and values with other ranks'."""
    comm = MPI.COMM_WORLD
    values = [each.tolist() for each in model.parameters()]
    assert comm.allgather(values) == [values] * SIZE
    parameters = [each for each in model.parameters() if each.requires_grad]
    outputs = model.module(X, numbers).sum()
    alone = torch.autograd.grad(outputs, parameters)
    for parameter, own in zip(parameters, alone, strict=True):
        mean = torch.tensor(comm.allgather(own.tolist()), dtype=torch.float64).mean(0)
        torch.testing.assert_close(parameter.grad, mean, rtol=1e-12, atol=0)


@pytest.mark.parametrize("as_view", [True, False])
@pytest.mark.parametrize("find_unused", [True, False])
@pytest.mark.parametrize("change", CHANGES)
def test_parameters_that_change_are_reduced(
    wrap: Wrap, change: Callable[[Any], None], find_unused: bool, as_view: bool
) -> None:
    model = wrap(Branches(), find_unused_parameters=find_unused, gradient_as_view=as_view)
    model(X, range(4)).sum().backward()
    for _ in range(2):
        change(model.module)
        numbers = range(len(model.module.layers))
        for _ in range(2):
            model.zero_grad()
            model(X, numbers).sum().backward()
            check(model, numbers)


def test_a_parameter_that_is_replaced_each_time_keeps_its_key(wrap: Wrap) -> None:
    model = wrap(Branches())
    model(X, range(4)).sum().backward()
    keys = model.kvstore.keys()
    for step in (2, 3, 4):
        replace(model.module)
        model.zero_grad()
        model(X * step, range(4)).sum().backward()
        assert gradient(model.module.layers[1].weight) == pytest.approx([MEAN * step] * 2)
        assert gradient(model.module.layers[0].weight) == pytest.approx([MEAN * step] * 2)
    assert model.kvstore.keys() == keys


def test_a_removed_parameter_keeps_its_gradient(wrap: Wrap) -> None:
    model = wrap(Branches())
    model(X, range(4)).sum().backward()
    gone = model.module.layers[1].weight
    replace(model.module)
    model(5 * X, range(4)).sum().backward()
    assert gradient(gone) == pytest.approx([MEAN] * 2)
    (gone.sum() * 3).backward()
    assert gradient(gone) == pytest.approx([MEAN + 3] * 2)


def test_ranks_that_use_an_added_parameter_are_counted(wrap: Wrap) -> None:
    model = wrap(Branches(), find_unused_parameters=True)
    model(X, [0] if RANK == 0 else [0, 1]).sum().backward()
    model.zero_grad()
    append(model.module)
    model(X, [0, 4] if RANK == 0 else [0]).sum().backward()
    unused = [layer.weight.grad is None for layer in model.module.layers]
    assert unused == [False, True, True, True, False]
    assert gradient(model.module.layers[4].weight) == pytest.approx([1 / SIZE] * 2)


@pytest.mark.skipif(SIZE == 1, reason="one rank differs from no other")
def test_ranks_that_add_other_parameters(wrap: Wrap) -> None:
    model = wrap(Branches())
    model.module.layers.append(nn.Linear(2, 1 + (RANK == 1), bias=False, dtype=torch.float64))
    with pytest.raises(SpecMismatch, match="the ranks disagree at init: .*'layers.4.weight'"):
        model(X, range(4))


@pytest.mark.skipif(SIZE == 1, reason="one rank differs from no other")
def test_a_rank_that_adds_a_parameter_alone(wrap: Wrap) -> None:
    model = wrap(Branches())
    if RANK == 1:
        append(model.module)
    named = "the new parameters layers.4.weight; .*" if RANK == 1 else ""
    words = rf"{named}rank 1 called init\("
    with pytest.raises(OrderMismatch, match=words):
        model(X, range(4)).sum().backward()


def test_added_parameters_of_another_wrapper_are_refused_each_time(wrap: Wrap) -> None:
    other, model = wrap(linear(1.0)), wrap(Branches())
    model.module.layers.append(other.module)
    for _ in range(2):
        with pytest.raises(UsageError, match="reduces the gradient of parameter 'layers.4.weight'"):
            model(X, range(5))
    del model.module.layers[4]
    model(X, range(4)).sum().backward()
    assert gradient(model.module.layers[3].weight) == pytest.approx([MEAN] * 2)


@pytest.mark.parametrize("dot", ["", "."])
def test_ignored_parameters_and_buffers_stay_each_ranks_own(wrap: Wrap, dot: str) -> None:
    module = Branches()
    module.own = nn.Parameter(torch.full((1,), RANK + 2.0, dtype=torch.float64))
    module.register_buffer("mark", torch.tensor(RANK))
    module.register_buffer("shared", torch.tensor(RANK))
    module._ddp_params_and_buffers_to_ignore = [f"{dot}own", f"{dot}mark", "layers.3.weight"]
    model = wrap(module)
    assert (module.own.item(), module.mark.item(), module.shared.item()) == (RANK + 2.0, RANK, 0)
    for _ in range(2):
        model.zero_grad()
        (model(X, range(4)).sum() + (RANK + 1) * module.own).sum().backward()
        assert gradient(module.own) == [RANK + 1.0]
        assert gradient(module.layers[3].weight) == [RANK + 1.0] * 2
        assert gradient(module.layers[0].weight) == pytest.approx([MEAN] * 2)
    assert module.mark.item() == RANK


class Halved(nn.Module):
    """A parametrization, which makes a weight from its original."""

    def forward(self, original: Any) -> Any:
        return original * 0.5


def test_a_parametrized_weight_is_reduced(wrap: Wrap) -> None:
    """torch replaces the node that accumulates the gradient, and keeps the parameter."""
    model = wrap(linear(1.0), find_unused_parameters=True)
    model(X).sum().backward()
    torch.nn.utils.parametrize.register_parametrization(model.module, "weight", Halved())
    for _ in range(2):
        model.zero_grad()
        model(X).sum().backward()
        original = model.module.parametrizations.weight.original
        assert gradient(original) == pytest.approx([MEAN / 2] * 2)


@pytest.mark.parametrize("find_unused", [True, False])
def test_a_tensor_replaced_in_place_is_refused_once(wrap: Wrap, find_unused: bool) -> None:
    model = wrap(linear(1.0), find_unused_parameters=find_unused)
    model(X).sum().backward()
    weight = model.module.weight
    with torch.no_grad():
        weight.set_(torch.ones(1, 2, dtype=torch.float64))
    model.zero_grad()
    with pytest.raises(UsageError, match=r"'weight' was not reduced, because its tensor was repl"):
        model(X).sum().backward()
    model.zero_grad()
    model(X).sum().backward()
    assert gradient(weight) == pytest.approx([MEAN] * 2)
