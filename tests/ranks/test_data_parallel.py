"""`ncclkv.torch.DataParallel` on every rank of the job: closed forms, and torch's DDP on Gloo."""

from __future__ import annotations

import re
from typing import Any

import pytest
from mpi4py import MPI

from ncclkv.engine.instrument import Instrument, Launch
from ncclkv.errors import OrderMismatch, SpecMismatch, UsageError
from tests.harness.modules import (
    MEAN_RANK,
    RANK,
    SIZE,
    Branches,
    Network,
    Wrap,
    gradient,
    linear,
    trained,
)

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import nn  # noqa: E402

WORLD = MPI.COMM_WORLD


@pytest.mark.parametrize(
    ("kind", "dtype", "tolerance", "as_view"),
    [
        ("SGD", "float64", 1e-12, False),
        ("SGD", "float32", 1e-5, True),
        ("Adam", "float64", 1e-12, True),
        ("Adam", "float32", 1e-5, False),
    ],
)
def test_a_training_run_equals_that_of_ddp(
    wrap: Wrap, gloo: None, kind: str, dtype: str, tolerance: float, as_view: bool
) -> None:
    states = []
    options = {"lr": 0.05, "momentum": 0.9} if kind == "SGD" else {"lr": 0.01}
    for wrapper in (torch.nn.parallel.DistributedDataParallel, wrap):
        torch.manual_seed(3 + RANK)  # both take rank 0's parameters
        named = {} if wrapper is not wrap else {"gradient_as_view": as_view}
        model = wrapper(Network(getattr(torch, dtype)), **named)
        optimizer = getattr(torch.optim, kind)(model.parameters(), **options)
        states.append(trained(model, 12, getattr(torch, dtype), optimizer))
    ddp, own = states
    assert list(ddp) == list(own)
    for name, expected in ddp.items():
        got = own[name]
        if "running" in name or "num_batches" in name:  # each rank's own since the last forward
            torch.testing.assert_close(got, expected, rtol=10 * tolerance, atol=10 * tolerance)
        else:
            torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.skipif(SIZE == 1, reason="one rank differs from no other")
@pytest.mark.parametrize("widths", [(2, 3), (2,)], ids=["shapes", "number"])
def test_ranks_that_wrap_different_modules(wrap: Wrap, widths: tuple[int, ...]) -> None:
    layers = [nn.Linear(2, width) for width in (widths if RANK else (2, 2))]
    with pytest.raises(SpecMismatch, match="the ranks disagree at init: .*'1.bias'"):
        wrap(nn.Sequential(*layers))


def test_parameters_and_buffers_take_rank_0s_values(wrap: Wrap) -> None:
    module = nn.Sequential(linear(RANK + 5.0), nn.BatchNorm1d(1), linear(RANK + 7.0))
    module[2].weight.requires_grad_(False)
    module[1].running_mean.fill_(RANK + 1)
    wrap(module)
    assert module[0].weight.tolist() == [[5.0, 5.0]]
    assert module[2].weight.tolist() == [[7.0, 7.0]]
    assert module[1].running_mean.tolist() == [1.0]


def test_frozen_tensors_of_any_layout_take_rank_0s_values(wrap: Wrap) -> None:
    module = nn.Module()
    module.used = nn.Parameter(torch.zeros(2))
    values = torch.arange(1_500_000, dtype=torch.float32).reshape(2, -1).t()
    module.large = nn.Parameter(values * (RANK + 1), requires_grad=False)
    module.short = nn.Parameter(torch.full((3,), RANK + 2.0).half(), requires_grad=False)
    module.register_buffer("mask", torch.tensor([RANK == 0, True]))
    wrap(module, broadcast_buffers=False)
    assert torch.equal(module.large, values)
    assert module.short.tolist() == [2.0] * 3
    assert module.mask.tolist() == [True, True]


@pytest.mark.parametrize("average", [True, False])
def test_gradients_are_reduced(wrap: Wrap, average: bool) -> None:
    model = wrap(linear(1.0), average=average)
    model(torch.full((1, 2), RANK + 1.0, dtype=torch.float64)).sum().backward()
    mean = MEAN_RANK + 1
    assert gradient(model.module.weight) == pytest.approx([mean * (1 if average else SIZE)] * 2)


def test_grad_stays_the_view_and_is_accumulated_in_place(wrap: Wrap) -> None:
    model = wrap(linear(1.0))
    x = torch.full((1, 2), RANK + 1.0, dtype=torch.float64)
    model(x).sum().backward()
    first = model.module.weight.grad
    model.zero_grad(set_to_none=False)
    model(x).sum().backward()
    assert model.module.weight.grad is first
    place, address = first.data_ptr(), id(first)
    del first
    model.zero_grad()
    assert model.module.weight.grad is None
    model(x).sum().backward()
    assert model.module.weight.grad.data_ptr() == place
    assert id(model.module.weight.grad) == address
    assert gradient(model.module.weight) == pytest.approx([MEAN_RANK + 1] * 2)


def test_backward_twice_after_a_forward_pass_adds_averages(wrap: Wrap) -> None:
    model = wrap(linear(1.0))
    out = model(torch.full((1, 2), RANK + 1.0, dtype=torch.float64)).sum()
    out.backward(retain_graph=True)
    out.backward()
    assert gradient(model.module.weight) == pytest.approx([2 * (MEAN_RANK + 1)] * 2)


@pytest.mark.parametrize("as_view", [True, False])
def test_no_sync_accumulates(wrap: Wrap, as_view: bool) -> None:
    model = wrap(linear(1.0), gradient_as_view=as_view)
    for _ in range(2):
        model.zero_grad()
        with model.no_sync():
            for micro in range(3):
                x = torch.full((1, 2), RANK + micro + 1.0, dtype=torch.float64)
                model(x).sum().backward()
        assert gradient(model.module.weight) == [3 * RANK + 6.0] * 2
        model(torch.full((1, 2), 4.0 * RANK, dtype=torch.float64)).sum().backward()
        assert gradient(model.module.weight) == pytest.approx([7 * MEAN_RANK + 6] * 2)


@pytest.mark.parametrize("as_view", [True, False])
def test_parameters_that_some_ranks_or_no_rank_uses(wrap: Wrap, as_view: bool) -> None:
    model = wrap(Branches(), find_unused_parameters=True, gradient_as_view=as_view)
    x = torch.full((1, 2), RANK + 1.0, dtype=torch.float64)
    for _ in range(2):
        model.zero_grad()
        model(x, [0, 1] if RANK == 0 else [1]).sum().backward()
        grads = [layer.weight.grad for layer in model.module.layers]
        assert grads[0].tolist() == [pytest.approx([1 / SIZE] * 2)]
        assert grads[1].tolist() == [pytest.approx([MEAN_RANK + 1] * 2)]
        assert grads[2:] == [None, None]
    # Without zero_grad a gradient that no rank has computed since stays as it was.
    before = grads[1].clone()
    model(x, [0, 2]).sum().backward()
    assert torch.equal(model.module.layers[1].weight.grad, before)
    assert gradient(model.module.layers[2].weight) == pytest.approx([MEAN_RANK + 1] * 2)
    assert gradient(model.module.layers[0].weight) == pytest.approx([1 / SIZE + MEAN_RANK + 1] * 2)


def test_use_in_no_sync_counts_as_use(wrap: Wrap) -> None:
    model = wrap(Branches(), find_unused_parameters=True)
    x = torch.full((1, 2), RANK + 1.0, dtype=torch.float64)
    with model.no_sync():
        model(x, [3]).sum().backward()
    model(x, [0]).sum().backward()
    for number in (0, 3):
        assert gradient(model.module.layers[number].weight) == pytest.approx([MEAN_RANK + 1] * 2)
    assert model.module.layers[1].weight.grad is None


def test_a_missing_gradient_is_an_error_and_the_next_step_is_right(wrap: Wrap) -> None:
    model = wrap(Branches())
    x = torch.full((1, 2), RANK + 1.0, dtype=torch.float64)
    words = "'layers.2.weight' and 1 other parameters.*find_unused_parameters=True"
    with pytest.raises(UsageError, match=f"rank {RANK} of {SIZE}: .*{words}"):
        model(x, [0, 1]).sum().backward()
    model.zero_grad()
    model(x, [0, 1, 2, 3]).sum().backward()
    for layer in model.module.layers:
        assert gradient(layer.weight) == pytest.approx([MEAN_RANK + 1] * 2)


@pytest.mark.skipif(SIZE == 1, reason="one rank differs from no other")
def test_a_gradient_that_one_rank_lacks_is_an_error_on_all_ranks(wrap: Wrap) -> None:
    model = wrap(Branches(), bucket_bytes=0)
    x = torch.full((1, 2), RANK + 1.0, dtype=torch.float64)
    with pytest.raises(UsageError if RANK == 1 else OrderMismatch) as caught:
        model(x, [0, 1, 3] if RANK == 1 else [0, 1, 2, 3]).sum().backward()
    text = "rank 1 called early end of an overlap\\(.*test_data_parallel.py:"
    assert re.search("'layers.2.weight'" if RANK == 1 else text, str(caught.value))
    with pytest.raises(OrderMismatch, match=text):
        model(x, [0, 1, 2, 3]).sum().backward()


def test_shared_parameters(wrap: Wrap) -> None:
    module = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)).double()
    module[1].weight = module[0].weight
    nn.init.constant_(module[0].weight, 0.5)
    model = wrap(module)
    model(torch.full((1, 2), RANK + 1.0, dtype=torch.float64)).sum().backward()
    # Of W W x for equal weights w: each element has the derivative 4 w x.
    assert gradient(module[0].weight) == pytest.approx([2 * (MEAN_RANK + 1)] * 4)
    assert list(model.state_dict()) == ["0.weight", "1.weight"]


def test_a_parameter_that_changes_requires_grad(wrap: Wrap) -> None:
    model = wrap(Branches())
    layers = model.module.layers
    layers[3].weight.requires_grad_(False)
    x = torch.full((1, 2), RANK + 1.0, dtype=torch.float64)
    trainable = [[0, 1, 2], [0, 1], [0, 1, 2, 3], [0, 1, 2, 3]]
    for numbers in trainable:
        for number, layer in enumerate(layers):
            layer.weight.requires_grad_(number in numbers)
        model.zero_grad()
        model(x, [0, 1, 2, 3]).sum().backward()
        for number, layer in enumerate(layers):
            if number in numbers:
                assert gradient(layer.weight) == pytest.approx([MEAN_RANK + 1] * 2)
            else:
                assert layer.weight.grad is None


def test_a_parameter_that_is_frozen_at_first(wrap: Wrap) -> None:
    module = Branches()
    module.layers[2].weight.requires_grad_(False)
    model = wrap(module, find_unused_parameters=True)
    x = torch.full((1, 2), RANK + 1.0, dtype=torch.float64)
    model(x, [0, 2]).sum().backward()
    assert module.layers[2].weight.grad is None
    module.layers[2].weight.requires_grad_(True)
    model(x, [2]).sum().backward()
    assert gradient(module.layers[2].weight) == pytest.approx([MEAN_RANK + 1] * 2)


def test_buffers_follow_rank_0_after_a_training_pass(wrap: Wrap) -> None:
    norm = nn.BatchNorm1d(1, momentum=1.0, dtype=torch.float64)
    model = wrap(nn.Sequential(norm, nn.Linear(1, 1, dtype=torch.float64)))
    x = torch.tensor([[2.0 * RANK], [2.0 * RANK + 2]], dtype=torch.float64)
    model(x).sum().backward()
    assert norm.running_mean.tolist() == [2 * RANK + 1.0]
    model.eval()
    with torch.no_grad():
        model(x)
    assert norm.running_mean.tolist() == [1.0]
    assert norm.num_batches_tracked.item() == 1
    # Later passes without gradients are local.
    if RANK == 0:
        with torch.no_grad():
            model(x)


def test_parameters_of_several_dtypes(wrap: Wrap) -> None:
    pytest.importorskip("ml_dtypes", reason="bfloat16 needs ml_dtypes")
    dtypes = torch.float64, torch.float32, torch.float16, torch.bfloat16

    class Several(nn.ModuleList):
        def forward(self, value: float) -> Any:
            inputs = [torch.full((1, 2), value, dtype=dtype) for dtype in dtypes]
            return sum(layer(x).double().sum() for layer, x in zip(self, inputs, strict=True))

    model = wrap(Several(linear(1.0, dtype) for dtype in dtypes))
    for _ in range(2):
        model.zero_grad()
        model(RANK + 1.0).backward()
        for layer, dtype in zip(model.module, dtypes, strict=True):
            assert layer.weight.grad.dtype is dtype
            assert gradient(layer.weight) == pytest.approx([MEAN_RANK + 1] * 2, rel=1e-2)


def test_a_gradient_scaler_works_unchanged(wrap: Wrap) -> None:
    model = wrap(linear(1.0, torch.float32))
    sgd = torch.optim.SGD(model.parameters(), lr=0.5)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=100)
    for value in (float("inf"), 1.0):
        sgd.zero_grad()
        x = torch.full((1, 2), value if RANK == SIZE - 1 else 1.0)
        scaler.scale(model(x).sum()).backward()
        scaler.step(sgd)
        scaler.update()
    # The step with infinity on one rank is left out on all ranks.
    assert model.module.weight.tolist() == [[0.5, 0.5]]
    assert scaler.get_scale() == 4.0


class Launched(Instrument):
    """Counts launches."""

    def __init__(self) -> None:
        self.count = 0

    def launched(self, launch: Launch) -> None:
        self.count += 1


@pytest.mark.parametrize("find_unused", [False, True])
def test_reductions_start_while_backward_runs(wrap: Wrap, find_unused: bool) -> None:
    layers = [nn.Linear(64, 64, bias=False) for _ in range(6)]
    model = wrap(nn.Sequential(*layers), bucket_bytes=0, find_unused_parameters=find_unused)
    launched, counts = Launched(), []
    model.kvstore.add_instrument(launched)
    for layer in layers:  # runs before the push of the same gradient
        layer.weight.register_post_accumulate_grad_hook(lambda _: counts.append(launched.count))
    model(torch.ones(1, 64)).sum().backward()
    assert counts == [0, 1, 2, 3, 4, 5]
    assert launched.count >= 6


def test_an_exception_in_backward_leaves_the_next_step_right(wrap: Wrap) -> None:
    layers = [linear(1.0), nn.Linear(1, 1, bias=False, dtype=torch.float64)]
    nn.init.constant_(layers[1].weight, 1.0)
    model = wrap(nn.Sequential(*layers), bucket_bytes=0)

    def failing(_: Any) -> None:
        raise ZeroDivisionError

    x = torch.full((1, 2), RANK + 1.0, dtype=torch.float64)
    handle = layers[0].weight.register_hook(failing)
    with pytest.raises(ZeroDivisionError):
        model(x).sum().backward()
    handle.remove()
    model.zero_grad()
    model(x).sum().backward()
    assert gradient(layers[0].weight) == pytest.approx([MEAN_RANK + 1] * 2)


def test_the_state_is_that_of_the_module(wrap: Wrap) -> None:
    module = Network(torch.float32)
    names = list(module.state_dict()), [name for name, _ in module.named_parameters()]
    model = wrap(module)
    assert list(model.state_dict()) == names[0]
    assert [name for name, _ in model.named_parameters()] == names[1]
    assert len(list(model.parameters())) == len(names[1])
    state = {name: torch.zeros_like(value) for name, value in model.state_dict().items()}
    model.load_state_dict(state)
    assert all(not value.any() for value in module.state_dict().values())
    assert model.eval().module.training is False
    assert [name for name, _ in model.named_modules()] == [n for n, _ in module.named_modules()]


def test_ranks_stay_equal_in_every_bit(wrap: Wrap) -> None:
    torch.manual_seed(RANK)
    model = wrap(nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1)))
    adam = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(50):
        adam.zero_grad()
        model(torch.randn(4, 8)).square().mean().backward()
        adam.step()
    everywhere = WORLD.allgather([value.tolist() for value in model.state_dict().values()])
    assert everywhere == [everywhere[0]] * SIZE
