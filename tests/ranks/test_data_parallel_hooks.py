"""`ncclkv.torch.DataParallel` beside hooks of the program, and the hooks that it leaves behind."""

from __future__ import annotations

import gc
import os
from typing import Any
from weakref import ref

import pytest
from mpi4py import MPI

from ncclkv.errors import UsageError
from tests.harness.modules import MEAN_RANK, RANK, SIZE, Wrap, gradient, linear

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import nn  # noqa: E402

WORLD = MPI.COMM_WORLD


def clamp(parameter: Any) -> None:
    """Change a gradient in place, as hooks that clip gradients do."""
    parameter.grad.clamp_(-1e-3, 1e-3)


@pytest.mark.parametrize("as_view", [True, False])
@pytest.mark.parametrize("first", [True, False], ids=["before", "after"])
def test_a_hook_of_the_program_changes_gradients_before_they_are_reduced(
    wrap: Wrap, first: bool, as_view: bool
) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4)))
    if first:
        for each in module.parameters():
            each.register_post_accumulate_grad_hook(clamp)
    # One bucket: the last hook of a pass launches it, in the same call that clamps.
    model = wrap(module, bucket_bytes=1 << 25, gradient_as_view=as_view)
    if not first:
        for each in module.parameters():
            each.register_post_accumulate_grad_hook(clamp)
    for step in range(3):
        model.zero_grad()
        random = torch.Generator().manual_seed(10 * step + RANK)
        (100 * model(torch.randn(4, 64, generator=random)).square().mean()).backward()
        gradients = [each.grad.clone() for each in module.parameters()]
        assert max(each.abs().max().item() for each in gradients) <= 1e-3 * (1 + 1e-6)
        everywhere = WORLD.allgather([each.tolist() for each in gradients])
        assert everywhere == [everywhere[0]] * SIZE


@pytest.mark.parametrize("as_view", [True, False])
def test_a_hook_registered_after_wrapping_sees_the_ranks_own_gradient(
    wrap: Wrap, as_view: bool
) -> None:
    model = wrap(linear(1.0), gradient_as_view=as_view)
    seen = []

    def double(parameter: Any) -> None:
        seen.append(gradient(parameter))
        parameter.grad.mul_(2)

    model.module.weight.register_post_accumulate_grad_hook(double)
    model(torch.full((1, 2), RANK + 1.0, dtype=torch.float64)).sum().backward()
    assert seen == [[RANK + 1.0] * 2]
    assert gradient(model.module.weight) == pytest.approx([2 * (MEAN_RANK + 1)] * 2)


def test_a_tensor_hook_that_returns_the_gradient_before(wrap: Wrap) -> None:
    model = wrap(linear(1.0))
    weight = model.module.weight
    x = torch.full((1, 2), RANK + 1.0, dtype=torch.float64)
    model(x).sum().backward()
    weight.register_hook(lambda _: weight.grad)
    model(x).sum().backward()
    assert gradient(weight) == pytest.approx([2 * (MEAN_RANK + 1)] * 2)


def test_wrappers_that_are_dropped_without_close_are_freed() -> None:
    from ncclkv.torch import DataParallel

    counts = []
    for _ in range(6):
        model = DataParallel(nn.Sequential(linear(1.0), nn.BatchNorm1d(1).double()), "dist_sync")
        model(torch.full((2, 2), RANK + 1.0, dtype=torch.float64)).sum().backward()
        gradients, kv = ref(model._gradients), ref(model.kvstore)
        del model
        gc.collect()
        assert (gradients(), kv()) == (None, None)
        counts.append(len(os.listdir("/proc/self/fd")))
    assert counts[2:] == counts[2:3] * 4


def test_a_hook_that_takes_gradients_before_they_are_reduced_is_refused(wrap: Wrap) -> None:
    """Step an optimizer inside backward, as programs do that save the memory of gradients."""
    model = wrap(linear(1.0), gradient_as_view=True)
    weight = model.module.weight
    step = torch.optim.SGD([weight], lr=1.0)

    def take(parameter: Any) -> None:
        step.step()
        step.zero_grad()

    hook = weight.register_post_accumulate_grad_hook(take)
    with pytest.raises(UsageError, match=r"\.grad of parameter 'weight' is None .* after backward"):
        model(torch.full((1, 2), RANK + 1.0, dtype=torch.float64)).sum().backward()
    hook.remove()
    model(torch.full((1, 2), RANK + 1.0, dtype=torch.float64)).sum().backward()
    assert gradient(weight) == pytest.approx([MEAN_RANK + 1] * 2)


class NoGradient(torch.autograd.Function):
    """A function that gives its second argument no gradient."""

    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any) -> Any:
        return x * weight.sum()

    @staticmethod
    def backward(ctx: Any, given: Any) -> Any:
        return given, None


class Undefined(nn.Module):
    """A layer, and a weight whose gradient backward gives as None on the first rank."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = linear(1.0)
        self.weight = nn.Parameter(torch.ones(2, dtype=torch.float64))

    def forward(self, x: Any) -> Any:
        x = self.layer(x)
        return NoGradient.apply(x, self.weight) if RANK == 0 else x * self.weight.sum()


def test_an_undefined_gradient_counts_as_zeros(wrap: Wrap) -> None:
    model = wrap(Undefined())
    for _ in range(2):
        model.zero_grad()
        model(torch.ones(1, 2, dtype=torch.float64)).sum().backward()
        assert gradient(model.module.weight) == pytest.approx([2.0 * (SIZE - 1) / SIZE] * 2)
