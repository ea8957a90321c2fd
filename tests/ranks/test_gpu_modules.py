"""Layers 4 and 5, NCCL on a real GPU: modules of torch on the GPU, on one rank and on several.

Sums of small integers are exact, so the gradients are compared with closed forms.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest
from mpi4py import MPI

import ncclkv
from tests.nccl.gpu import emulated, need_gpu, required

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import nn  # noqa: E402

from ncclkv.torch import DataParallel  # noqa: E402

RANK, SIZE = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
MEAN = sum(range(SIZE)) / SIZE + 1
WIDE = 2048
"""Columns of layers, so that a pass on the GPU takes longer than its launch by the host."""

pytestmark = pytest.mark.limit(60)


@pytest.fixture
def kv() -> Iterator[Any]:
    """Return a store on this rank's GPU."""
    need_gpu()
    if emulated() or not torch.cuda.is_available():
        if required():
            pytest.fail(f"NCCLKV_REQUIRE_GPU=1, and torch {torch.__version__} finds no GPU")
        pytest.skip("torch finds no GPU: install torch with CUDA")
    with ncclkv.create("nccl", timeout=30) as store:
        yield store


def device() -> Any:
    """Return torch's name of the GPU that the store has made current."""
    import cupy

    return torch.device("cuda", cupy.cuda.Device().id)


def layers(count: int) -> Any:
    """Return layers without biases, whose weights are the identity."""
    module = nn.Sequential(*(nn.Linear(WIDE, WIDE, bias=False) for _ in range(count)))
    for layer in module:
        nn.init.eye_(layer.weight)
    return module.to(device())


@pytest.mark.parametrize("own_stream", [False, True])
@pytest.mark.parametrize("as_view", [True, False])
def test_gradients_are_averaged(kv: Any, own_stream: bool, as_view: bool) -> None:
    model = DataParallel(layers(3), kv, gradient_as_view=as_view)
    stream = torch.cuda.Stream(device())
    stream.wait_stream(torch.cuda.current_stream(device()))
    with torch.cuda.stream(stream) if own_stream else nullcontext():
        for step in range(3):
            model.zero_grad()
            model(torch.full((4, WIDE), RANK + step + 1.0, device=device())).sum().backward()
            # Read on the stream at once, with no wait of the host.
            errors = [(layer.weight.grad - 4 * (MEAN + step)).abs().max() for layer in model.module]
            assert max(error.item() for error in errors) < 1e-3
    torch.cuda.synchronize()


def test_a_training_run_equals_that_of_one_process(kv: Any) -> None:
    torch.manual_seed(3)
    bare = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 1)).double().to(device())
    model = DataParallel(copy.deepcopy(bare), kv)
    adam = torch.optim.Adam(model.parameters(), lr=0.01, foreach=True)
    xs = torch.randn(10, 4 * SIZE, 16, device=device(), dtype=torch.float64)
    for x in xs:
        adam.zero_grad()
        model(x[4 * RANK : 4 * RANK + 4]).square().mean().backward()
        adam.step()
    adam = torch.optim.Adam(bare.parameters(), lr=0.01, foreach=True)
    for x in xs:
        adam.zero_grad()
        bare(x).square().mean().backward()
        adam.step()
    for expected, found in zip(bare.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


def test_buffers_follow_rank_0(kv: Any) -> None:
    norm = nn.BatchNorm1d(1, momentum=1.0).to(device())
    model = DataParallel(nn.Sequential(norm, nn.Linear(1, 1).to(device())), kv)
    model(torch.full((2, 1), 2.0 * RANK, device=device())).sum().backward()
    model.eval()
    with torch.no_grad():
        model(torch.zeros(2, 1, device=device()))
    assert norm.running_mean.tolist() == [0.0]


def test_accumulation_and_unused_parameters(kv: Any) -> None:
    model = DataParallel(layers(1), kv, find_unused_parameters=True)
    x = torch.full((1, WIDE), RANK + 1.0, device=device())
    with model.no_sync():
        model(x).sum().backward()
    model(x).sum().backward()
    assert (model.module[0].weight.grad - 2 * MEAN).abs().max().item() < 1e-3


def test_uneven_inputs(kv: Any) -> None:
    model = DataParallel(layers(1), kv)
    sgd = torch.optim.SGD(model.parameters(), lr=1.0)
    with model.join():
        for _ in range(1 + RANK):
            sgd.zero_grad()
            model(torch.ones(1, WIDE, device=device())).sum().backward()
            sgd.step()
    # Step s is made by SIZE - s ranks.
    lost = sum(SIZE - step for step in range(SIZE)) / SIZE
    expected = torch.eye(WIDE, device=device()) - lost
    assert (model.module[0].weight - expected).abs().max().item() < 1e-3


def test_mixed_precision(kv: Any) -> None:
    model = DataParallel(layers(2), kv)
    scaler = torch.amp.GradScaler("cuda", init_scale=8.0)
    sgd = torch.optim.SGD(model.parameters(), lr=0.5)
    with torch.autocast("cuda", dtype=torch.float16):
        loss = model(torch.ones(1, WIDE, device=device())).sum()
    scaler.scale(loss).backward()
    scaler.step(sgd)
    scaler.update()
    assert (model.module[0].weight - torch.eye(WIDE, device=device()) + 0.5).abs().max() < 1e-2
