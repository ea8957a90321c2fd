"""Passes of `ncclkv.torch.DataParallel` that are local, and those that reduce, as with DDP."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import pytest
from mpi4py import MPI

from ncclkv.errors import UsageError
from tests.harness.modules import MEAN_RANK, RANK, Wrap, gradient, linear

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

WORLD = MPI.COMM_WORLD
MEAN = MEAN_RANK + 1
X = torch.full((1, 2), RANK + 1.0, dtype=torch.float64)
OWN = [RANK + 1.0] * 2


@dataclass
class Result:
    """A result in which torch and this package find a tensor."""

    out: Any


class Hidden:
    """A result in which no tensor is found, such as torch.distributions."""

    def __init__(self, out: Any) -> None:
        self.out = out


class Returning(nn.Module):
    """A layer that returns its output in an object."""

    def __init__(self, kind: Callable[[Any], Any]) -> None:
        super().__init__()
        self.layer, self.kind = linear(1.0), kind

    def forward(self, x: Any) -> Any:
        return self.kind(self.layer(x))


def test_a_pass_of_the_wrapped_module_is_local(wrap: Wrap) -> None:
    model = wrap(linear(1.0))
    warned = pytest.warns(UserWarning, match="not reduced") if WORLD.size > 1 else nullcontext()
    with warned:  # the program may train the module by mistake
        model.module(X).sum().backward()
    assert gradient(model.module.weight) == OWN
    for _ in range(2):
        model.zero_grad()
        model(X).sum().backward()
        assert gradient(model.module.weight) == pytest.approx([MEAN] * 2)
        model.zero_grad()
        model.module(X).sum().backward()
        assert gradient(model.module.weight) == OWN
    model(X).sum().backward()  # adds the average of what was local
    assert gradient(model.module.weight) == pytest.approx([2 * MEAN] * 2)


def test_a_rank_may_make_a_local_pass_alone(wrap: Wrap) -> None:
    model = wrap(linear(1.0))
    model(X).sum().backward()
    model.zero_grad()
    if RANK == 0:
        model.module(X).sum().backward()
    model(X).sum().backward()
    local = 1 / WORLD.size
    assert gradient(model.module.weight) == pytest.approx([MEAN + local] * 2)


KINDS: dict[str, Callable[[Any], Any]] = {
    "a tensor": lambda out: out,
    "a mapping": lambda out: {"size": 1, "out": [out]},
    "a dataclass": Result,
}


def found(result: Any) -> Any:
    """Return the tensor of a result."""
    if isinstance(result, dict):
        return result["out"][0]
    return result if isinstance(result, torch.Tensor) else result.out


@pytest.mark.parametrize("kind", KINDS)
def test_passes_through_outputs_reduce_whatever_happens_between(wrap: Wrap, kind: str) -> None:
    model = wrap(Returning(KINDS[kind]))
    weight = model.module.layer.weight
    first, second = found(model(X)).sum(), found(model(2 * X)).sum()
    with model.no_sync():
        third = found(model(4 * X)).sum()
    first.backward(retain_graph=True)
    assert gradient(weight) == pytest.approx([MEAN] * 2)
    found(model.module(X)).sum().backward()
    assert gradient(weight) == pytest.approx([MEAN + RANK + 1] * 2)
    second.backward()
    assert gradient(weight) == pytest.approx([4 * MEAN] * 2)
    first.backward()
    assert gradient(weight) == pytest.approx([5 * MEAN] * 2)
    third.backward()
    assert gradient(weight) == pytest.approx([5 * MEAN + 4 * (RANK + 1)] * 2)


def test_the_first_pass_reduces_even_if_no_tensor_is_found(wrap: Wrap) -> None:
    model = wrap(Returning(Hidden))
    for step in (1, 2):
        model.zero_grad()
        model(step * X).out.sum().backward()
        assert gradient(model.module.layer.weight) == pytest.approx([step * MEAN] * 2)


def test_a_gradient_of_an_output_alone_leaves_the_next_pass_to_reduce(wrap: Wrap) -> None:
    model = wrap(linear(1.0))
    for _ in range(2):
        model.zero_grad()
        x = X.clone().requires_grad_()
        (slope,) = torch.autograd.grad(model(x).square().sum(), x, create_graph=True)
        slope.sum().backward()
        (expected,) = torch.autograd.grad(
            torch.autograd.grad(model.module(x).square().sum(), x, create_graph=True)[0].sum(),
            model.module.weight,
        )
        mean = sum(WORLD.allgather(expected.reshape(-1).numpy())) / WORLD.size
        assert gradient(model.module.weight) == pytest.approx(mean.tolist())


class Parts(nn.Module):
    """Layers of which some are checkpointed by a task of autograd inside the task of the pass."""

    def __init__(self, used: list[int], *, hidden: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(2, 2, dtype=torch.float64) for _ in range(4))
        self.used, self.hidden = used, hidden

    def forward(self, x: Any) -> Any:
        x = self.layers[0](x)
        for number in self.used:
            x = checkpoint(self.layers[number], x, use_reentrant=True)
        return Hidden(x) if self.hidden else x


@pytest.fixture
def bucketed(wrap: Wrap) -> Callable[..., Any]:
    """Return a function that wraps a module of which each parameter has a bucket."""
    torch.manual_seed(3)
    return lambda module, **options: wrap(module, bucket_bytes=0, **options)


def mean_of(module: Any, loss: Callable[[Any], Any]) -> list[Any]:
    """Return the mean of the ranks' gradients, each rank's from the module alone."""
    module.zero_grad()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "DataParallel: this backward pass ")
        loss(module).backward()
    own = [each.grad.clone() for each in module.parameters()]
    module.zero_grad()
    return [torch.tensor(sum(WORLD.allgather(each.numpy())) / WORLD.size) for each in own]


@pytest.mark.parametrize("find_unused", [True, False])
def test_reentrant_checkpoints_also_of_the_last_layer(
    bucketed: Callable[..., Any], find_unused: bool
) -> None:
    model = bucketed(Parts([1, 2, 3]), find_unused_parameters=find_unused)
    for step in range(3):
        expected = mean_of(model.module, lambda module: module(X).square().sum())
        model(X).square().sum().backward()
        for parameter, mean in zip(model.module.parameters(), expected, strict=True):
            torch.testing.assert_close(parameter.grad, mean)
        assert model._gradients.reductions == step + 1


def test_a_checkpointed_wrapper(bucketed: Callable[..., Any]) -> None:
    model = bucketed(linear(1.0))
    for step in (1, 2):
        model.zero_grad()
        x = (step * X).requires_grad_()
        out = checkpoint(model, x, use_reentrant=True) + model.module(x)
        out.sum().backward()
        local = model.module.weight.grad - step * MEAN
        assert local.reshape(-1).tolist() in ([step * (RANK + 1.0)] * 2, [step * MEAN] * 2)


def test_a_part_that_is_checkpointed_twice_is_an_error_by_name(
    bucketed: Callable[..., Any],
) -> None:
    model = bucketed(Parts([1, 2, 3]))
    expected = mean_of(model.module, lambda module: module(X).sum())
    model.module.used = [1, 2, 3, 2]
    words = r"two gradients to parameter 'layers.2.\w+', .* give checkpoint\(\) use_reentrant=False"
    for _ in range(2):
        with pytest.raises(UsageError, match=words):
            model(X).sum().backward()
    model.module.used = [1, 2, 3]
    model.zero_grad()
    model(X).sum().backward()
    for parameter, mean in zip(model.module.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, mean)


@pytest.mark.parametrize("find_unused", [True, False])
def test_hidden_outputs_and_reentrant_checkpoints_are_an_error_by_name(
    bucketed: Callable[..., Any], find_unused: bool
) -> None:
    model = bucketed(Parts([1, 2, 3], hidden=True), find_unused_parameters=find_unused)
    words = r"give checkpoint\(\) use_reentrant=False"
    with pytest.raises(UsageError, match=words):
        model(X).out.sum().backward()


def test_a_gradient_that_the_program_assigns_before_the_pass_is_averaged(wrap: Wrap) -> None:
    model = wrap(linear(1.0))
    out = model(X).sum()
    model.module.weight.grad = torch.full((1, 2), 2.0 * RANK, dtype=torch.float64)
    out.backward()
    assert gradient(model.module.weight) == pytest.approx([MEAN + 2 * MEAN_RANK] * 2)
