"""Buffers of `ncclkv.torch.DataParallel`: each bit of rank 0 arrives, unnoticed by autograd."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from mpi4py import MPI

from ncclkv.errors import SpecMismatch
from tests.harness.modules import MEAN_RANK, RANK, SIZE, Wrap, gradient, linear

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import nn  # noqa: E402

WORLD = MPI.COMM_WORLD


def normed() -> Any:
    """Return a network with BatchNorm, the same on all ranks."""
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)).double()


def random(seed: int) -> Any:
    generator = torch.Generator().manual_seed(100 * seed + RANK)
    return torch.randn(5, 2, generator=generator, dtype=torch.float64)


def twice(model: Any, step: int) -> Any:
    return model(random(step)).square().mean() - model(random(50 + step)).mean()


def with_inference(model: Any, step: int) -> Any:
    loss = model(random(step)).square().mean()
    with torch.no_grad():
        model(random(50 + step))
    with torch.inference_mode():
        model(random(70 + step))
    return loss


def evaluated_between(model: Any, step: int) -> Any:
    loss = model(random(step)).square().mean()
    model.eval()
    model(random(50 + step))
    model.train()
    return loss


def with_fixed_statistics(model: Any, step: int) -> Any:
    model.eval()
    return model(random(step)).square().mean() + model(random(50 + step)).mean()


@pytest.mark.parametrize("loss", [twice, with_inference, evaluated_between, with_fixed_statistics])
def test_several_forward_passes_before_a_backward_pass(wrap: Wrap, loss: Any) -> None:
    bare = normed()
    model = wrap(copy.deepcopy(bare))
    for step in range(3):
        bare.zero_grad()
        model.zero_grad()
        loss(bare, step).backward()
        loss(model, step).backward()
        for own, alone in zip(model.parameters(), bare.parameters(), strict=True):
            parts = WORLD.allgather(alone.grad.tolist())
            mean = torch.tensor(parts, dtype=torch.float64).mean(0)
            torch.testing.assert_close(own.grad, mean, rtol=1e-12, atol=1e-14)


def test_buffers_follow_once_between_backward_passes(wrap: Wrap) -> None:
    model = wrap(normed())
    norm = model.module[1]
    x = random(1)
    model(x).sum().backward()
    norm.running_mean.fill_(RANK + 7)
    model.eval()
    model(x)
    assert norm.running_mean.tolist() == [7.0] * 4
    norm.running_mean.fill_(RANK + 8)
    model(x).sum().backward()
    assert norm.running_mean.tolist() == [RANK + 8.0] * 4
    model(x)
    assert norm.running_mean.tolist() == [8.0] * 4


def test_autograd_notices_no_write(wrap: Wrap) -> None:
    model = wrap(normed())
    mean = model.module[1].running_mean
    model.eval()
    model(random(1)).sum().backward()
    mean.fill_(RANK + 3)
    version = mean._version
    model(random(1))
    assert mean.tolist() == [3.0] * 4
    assert mean._version == version


BITS = {
    "minus zero": lambda: torch.tensor([-0.0, 0.0]),
    "payload of NaN": lambda: torch.tensor([0x7FC12345, 0x7F800001], dtype=torch.int32).view(
        torch.float32
    ),
    "complex32": lambda: torch.tensor([1 + 2j, -0.0 - 3j], dtype=torch.complex32),
    "float8": lambda: torch.arange(6, dtype=torch.uint8).view(torch.float8_e4m3fn),
    "bfloat16": lambda: torch.arange(6.0).bfloat16().reshape(2, 3).t(),
    "boolean": lambda: torch.tensor([True, False]),
    "number": lambda: torch.tensor(5),
    "strided": lambda: torch.arange(8.0)[::2],
    "one strided": lambda: torch.arange(2.0)[::2],
    "channels last": lambda: (
        torch.arange(16.0).reshape(1, 4, 2, 2).to(memory_format=torch.channels_last)
    ),
    "expanded": lambda: torch.arange(3.0).expand(2, 3),
    "no elements": lambda: torch.zeros(0, 3),
    "conjugate": lambda: torch.tensor([1 + 2j, 3 - 1j]).conj(),
}


def bits(tensor: Any) -> list[int]:
    whole = tensor.detach().resolve_conj().clone(memory_format=torch.contiguous_format)
    return whole.reshape(-1).view(torch.uint8).tolist()


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@pytest.mark.parametrize("broadcast", [True, False])
@pytest.mark.parametrize("name", BITS)
def test_each_bit_arrives(wrap: Wrap, name: str, broadcast: bool) -> None:
    module, expected = linear(1.0), bits(BITS[name]())
    buffer = BITS[name]()
    module.register_buffer("extra", buffer)
    if RANK:
        buffer.as_strided(
            (buffer.untyped_storage().nbytes() // buffer.element_size(),), (1,)
        ).copy_(torch.ones((), dtype=torch.float32))
    model = wrap(module, broadcast_buffers=broadcast)
    assert bits(module.extra) == expected
    assert module.extra is buffer
    if broadcast and name != "no elements":
        model(random(1)).sum().backward()
        if RANK:
            buffer.as_strided((1,), (1,)).copy_(torch.zeros((), dtype=torch.float32))
        model(random(1))
        assert bits(module.extra) == expected


@pytest.mark.parametrize("broadcast", [True, False])
@pytest.mark.parametrize("step", [2, 8])
def test_parameters_of_any_stride(wrap: Wrap, broadcast: bool, step: int) -> None:
    module = nn.Module()
    module.weight = nn.Parameter(torch.full((8,), RANK + 5.0)[::step])
    module.frozen = nn.Parameter(torch.full((8,), RANK + 6.0)[::step], requires_grad=False)
    module.forward = lambda x: x * module.weight.sum()
    model = wrap(module, broadcast_buffers=broadcast)
    assert module.weight.tolist() == [5.0] * (8 // step)
    assert module.frozen.tolist() == [6.0] * (8 // step)
    model(RANK + 1.0).backward()
    assert gradient(module.weight) == pytest.approx([MEAN_RANK + 1] * (8 // step))


@pytest.mark.skipif(SIZE == 1, reason="one rank differs from no other")
@pytest.mark.parametrize("other", [torch.zeros(3), torch.zeros(2, dtype=torch.int32)])
def test_ranks_whose_buffers_differ(wrap: Wrap, other: Any) -> None:
    module = linear(1.0)
    module.register_buffer("extra", other if RANK else torch.zeros(2))
    with pytest.raises(SpecMismatch, match="the ranks disagree at init: .*'extra"):
        wrap(module)
