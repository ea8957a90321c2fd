"""`ncclkv.torch.DataParallel` in programs of many kinds: gradients are the mean of all ranks'.

The mean is that of the bare module's gradients, over MPI.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest
from mpi4py import MPI

import ncclkv
from ncclkv.errors import UsageError
from tests.harness.modules import MEAN_RANK, RANK, SIZE, Wrap, gradient, linear

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import nn  # noqa: E402
from torch.nn.utils import parametrizations  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

WORLD = MPI.COMM_WORLD


def batch(value: float = RANK + 1.0, dtype: Any = torch.float64) -> Any:
    return torch.full((2, 2), value, dtype=dtype)


class Outputs(NamedTuple):
    """Results of a module, not all of which have a gradient."""

    main: Any
    others: dict[str, Any]


class Several(nn.Module):
    """A module with named arguments and nested outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = linear(2.0), linear(3.0)

    def forward(self, x: Any, *, scale: float = 1.0, fails: bool = False) -> Outputs:
        if fails:
            raise ZeroDivisionError
        first, second = self.first(x), self.second(scale * x)
        return Outputs(first, {"second": [second, second.detach()], "shape": x.shape})


class Checkpointed(nn.Module):
    """A module of which a part is computed again in the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2)).double()
        self.head = linear(1.0)

    def forward(self, x: Any) -> Any:
        for _ in range(2):
            x = checkpoint(self.body, x, use_reentrant=False)
        return self.head(x)


class NoOutputs(nn.Module):
    """A layer without outputs, whose weights have no elements."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = linear(1.0), nn.Parameter(torch.ones(1, 0).double())

    def forward(self, x: Any) -> Any:
        return self.first(x) @ self.last


def plain(model: Any) -> Any:
    return model(batch()).square().sum()


def of_nested_outputs(model: Any) -> Any:
    found = model(x=batch(), scale=2.0)
    return found.main.sum() + found.others["second"][0].square().sum()


def of_two_passes(model: Any) -> Any:
    return (model(batch()) * model(batch(2.0))).sum()


def of_a_gradient(model: Any) -> Any:
    x = batch().requires_grad_()
    (slope,) = torch.autograd.grad(model(x).square().sum(), x, create_graph=True)
    return slope.square().sum()


def in_low_precision(model: Any) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return model(batch(dtype=torch.float32)).sum()


def in_channels_last(model: Any) -> Any:
    x = torch.full((1, 3, 4, 4), RANK + 1.0).to(memory_format=torch.channels_last)
    return model(x).square().sum()


def of_complex(model: Any) -> Any:
    return model(torch.full((1, 2), RANK + 1j)).abs().sum()


def with_frozen_statistics(model: Any) -> Any:
    model.eval()
    with torch.no_grad():
        model(batch())
    return model(batch()).square().sum()


PROGRAMS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "named arguments and nested outputs": (Several, of_nested_outputs),
    "two passes, one backward": (lambda: nn.Linear(2, 1).double(), of_two_passes),
    "a gradient of a gradient": (lambda: nn.Linear(2, 1).double(), of_a_gradient),
    "checkpoints": (Checkpointed, plain),
    "autocast": (lambda: nn.Linear(2, 1), in_low_precision),
    "channels last": (
        lambda: nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last),
        in_channels_last,
    ),
    "complex": (lambda: nn.Linear(2, 1, dtype=torch.complex64), of_complex),
    "recurrent": (lambda: nn.LSTM(2, 3).double(), lambda model: model(batch())[0].sum()),
    "parametrized": (lambda: parametrizations.weight_norm(nn.Linear(2, 1).double()), plain),
    "no outputs": (NoOutputs, plain),
    "evaluation": (
        lambda: nn.Sequential(linear(1.0), nn.BatchNorm1d(1).double()),
        with_frozen_statistics,
    ),
}


def mean_over_ranks(tensor: Any) -> Any:
    """Return the mean of the ranks' tensors, computed by MPI."""
    return torch.from_numpy(np.asarray(WORLD.allreduce(tensor.numpy()) / SIZE))


@pytest.mark.parametrize("as_view", [True, False])
@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients_are_the_mean_of_the_bare_modules(wrap: Wrap, name: str, as_view: bool) -> None:
    make, loss = PROGRAMS[name]
    torch.manual_seed(5)
    bare = make()
    model = wrap(copy.deepcopy(bare), gradient_as_view=as_view)
    for _ in range(2):  # the second pass adds
        loss(bare).backward()
        loss(model).backward()
    for expected, found in zip(bare.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(found.grad, mean_over_ranks(expected.grad))
        if as_view:
            assert found.grad.stride() == found.stride(), "optimizers are slow with another layout"


def test_ranks_whose_parameters_have_other_layouts(wrap: Wrap) -> None:
    bare = nn.Conv2d(3, 4, 3)
    nn.init.constant_(bare.weight, 0.5)
    layout = torch.contiguous_format if RANK else torch.channels_last
    model = wrap(copy.deepcopy(bare).to(memory_format=layout))
    for module in (bare, model):
        x = torch.arange(48.0).reshape(1, 3, 4, 4) * (RANK + 1)
        module(x).sum().backward()
    torch.testing.assert_close(model.module.weight.grad, mean_over_ranks(bare.weight.grad))


OPTIMIZERS: dict[str, Callable[..., Any]] = {
    "SGD, foreach": partial(torch.optim.SGD, lr=0.5, momentum=0.5, foreach=True),
    "SGD, fused": partial(torch.optim.SGD, lr=0.5, momentum=0.5, fused=True),
    "AdamW, foreach": partial(torch.optim.AdamW, lr=0.1, foreach=True),
    "Adam, fused": partial(torch.optim.Adam, lr=0.1, fused=True),
    "Adagrad, fused": partial(torch.optim.Adagrad, lr=0.1, fused=True),
    "RMSprop": partial(torch.optim.RMSprop, lr=0.1, foreach=False),
}


@pytest.mark.parametrize("to_none", [True, False])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_step_as_with_the_mean(wrap: Wrap, name: str, to_none: bool) -> None:
    torch.manual_seed(5)
    bare = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1)).double()
    model = wrap(copy.deepcopy(bare))
    theirs, ours = OPTIMIZERS[name](bare.parameters()), OPTIMIZERS[name](model.parameters())
    for step in range(3):
        for optimizer, module in ((theirs, bare), (ours, model)):
            optimizer.zero_grad(set_to_none=to_none)
            module(batch(RANK + step)).sum().backward()
        for parameter in bare.parameters():
            parameter.grad.copy_(mean_over_ranks(parameter.grad))
        theirs.step()
        ours.step()
    for expected, found in zip(bare.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_outputs_have_a_backward_pass_each(wrap: Wrap) -> None:
    model = wrap(Several(), find_unused_parameters=True)
    found = model(batch())
    found.main.sum().backward()
    found.others["second"][0].sum().backward()
    for layer in (model.module.first, model.module.second):
        assert gradient(layer.weight) == pytest.approx([2 * MEAN_RANK + 2] * 2)


def test_an_output_without_a_backward_pass_is_an_error_by_name(wrap: Wrap) -> None:
    model = wrap(Several())
    with pytest.raises(UsageError, match="no gradient to parameter 'second.weight'"):
        model(batch()).main.sum().backward()


def test_an_exception_in_forward_leaves_the_next_step_right(wrap: Wrap) -> None:
    model = wrap(linear(1.0)), wrap(Several())
    with pytest.raises(ZeroDivisionError):
        model[1](model[0](batch()), fails=True)
    of_nested_outputs(model[1]).backward()
    assert gradient(model[1].module.first.weight) == pytest.approx([2 * MEAN_RANK + 2] * 2)


def test_two_modules_in_one_program(wrap: Wrap) -> None:
    body, head = wrap(nn.Linear(2, 2, bias=False).double()), wrap(linear(3.0))
    nn.init.constant_(body.module.weight, 0.5)
    for _ in range(2):
        body.zero_grad(), head.zero_grad()
        head(body(batch())).sum().backward()
        assert gradient(body.module.weight) == pytest.approx([6 * (MEAN_RANK + 1)] * 4)
        assert gradient(head.module.weight) == pytest.approx([2 * (MEAN_RANK + 1)] * 2)
    # One is trained and the other is not, as in a GAN.
    body.requires_grad_(False)
    head.zero_grad()
    head(body(batch())).sum().backward()
    assert gradient(head.module.weight) == pytest.approx([2 * (MEAN_RANK + 1)] * 2)


def test_hooks_of_the_module_and_of_the_wrapper_are_called(wrap: Wrap) -> None:
    model, called = wrap(linear(1.0)), []
    for module in (model, model.module):
        module.register_forward_hook(lambda *_: called.append("forward"))
        module.register_full_backward_hook(lambda *_: called.append("backward"))
    model(batch().requires_grad_()).sum().backward()
    assert called == ["forward"] * 2 + ["backward"] * 2


def test_all_parameters_are_frozen_for_some_passes(wrap: Wrap) -> None:
    model = wrap(linear(1.0))
    model.requires_grad_(False)
    assert not model(batch()).requires_grad
    model.requires_grad_(True)
    model(batch()).sum().backward()
    assert gradient(model.module.weight) == pytest.approx([2 * MEAN_RANK + 2] * 2)


def test_a_store_that_takes_missing_keys(wrap: Wrap) -> None:
    with ncclkv.create("dist_sync", missing="zeros", timeout=20) as kv:
        model = ncclkv.torch.DataParallel(linear(1.0), kv)
        model(batch()).sum().backward()
        assert gradient(model.module.weight) == pytest.approx([2 * MEAN_RANK + 2] * 2)


def in_other_data(module: Any) -> None:
    module.weight.grad.data = module.weight.grad * 1.0


def in_another_layout(module: Any) -> None:
    module.to(memory_format=torch.channels_last).to(memory_format=torch.contiguous_format)


@pytest.mark.parametrize("move", [in_other_data, in_another_layout])
@pytest.mark.parametrize("to_none", [True, False])
def test_gradients_whose_data_the_program_has_replaced(
    wrap: Wrap, move: Callable[[Any], None], to_none: bool
) -> None:
    model = wrap(nn.Conv2d(2, 2, 2, bias=False, dtype=torch.float64))
    x = torch.full((1, 2, 2, 2), RANK + 1.0, dtype=torch.float64)
    for _ in range(3):
        model(x).sum().backward()
        assert gradient(model.module.weight) == pytest.approx([MEAN_RANK + 1] * 16)
        move(model.module)
        model.zero_grad(set_to_none=to_none)


def test_a_pass_after_an_exception_in_the_pass_before(wrap: Wrap) -> None:
    model = wrap(Several(), find_unused_parameters=True, bucket_bytes=0)
    first, second = model.module.first.weight, model.module.second.weight
    found = model(batch())
    handle = first.register_hook(lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        # The gradient of the second layer is pushed before the exception.
        (found.main.sum() + found.others["second"][0].sum()).backward(retain_graph=True)
    handle.remove()
    model.zero_grad()
    found.main.sum().backward(retain_graph=True)  # without a forward pass between
    assert gradient(first) == pytest.approx([2 * MEAN_RANK + 2] * 2)
    model.zero_grad()
    found.others["second"][0].sum().backward()
    assert gradient(second) == pytest.approx([2 * MEAN_RANK + 2] * 2)


class Assigned(nn.Module):
    """A module whose forward pass assigns a new tensor to a buffer."""

    def __init__(self, *, detached: bool) -> None:
        super().__init__()
        self.layer, self.detached = linear(1.0), detached
        self.register_buffer("mean", torch.zeros((), dtype=torch.float64))

    def forward(self, x: Any) -> Any:
        out = self.layer(x)
        self.mean = out.detach().mean() if self.detached else out.mean()
        return out


@pytest.mark.parametrize("detached", [True, False])
def test_buffers_to_which_the_module_assigns(wrap: Wrap, detached: bool) -> None:
    inner = Assigned(detached=detached)
    model = wrap(nn.Sequential(nn.Identity(), inner))
    for _ in range(2):
        model(batch()).sum().backward()
        assert inner.mean.item() == 2 * (RANK + 1)
    handle = inner.register_forward_pre_hook(lambda *_: seen.append(inner.mean.item()))
    seen: list[float] = []
    model(batch())
    handle.remove()
    assert seen == [2]
