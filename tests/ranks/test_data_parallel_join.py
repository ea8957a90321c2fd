"""`DataParallel.join` on every rank of the job: ranks train on different numbers of batches."""

from __future__ import annotations

from typing import Any

import pytest
from mpi4py import MPI

from ncclkv.errors import KVStoreError, OrderMismatch, UsageError
from tests.harness.modules import RANK, SIZE, Branches, Network, Wrap, gradient, linear

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import nn  # noqa: E402

WORLD = MPI.COMM_WORLD


def batch(value: float) -> Any:
    return torch.full((1, 2), value, dtype=torch.float64)


def active(step: int, least: int = 1) -> int:
    """Return the number of ranks that make a step: rank r makes `least` and r more."""
    return sum(least + rank > step for rank in range(SIZE))


def step_on(model: Any, optimizer: Any, x: Any) -> None:
    optimizer.zero_grad()
    model(x).sum().backward()
    optimizer.step()


def equal_everywhere(model: Any) -> None:
    """Check that all ranks have the same parameters and buffers."""
    states = WORLD.allgather([value.tolist() for value in model.state_dict().values()])
    assert states == [states[0]] * SIZE


@pytest.mark.parametrize("by_all", [True, False])
@pytest.mark.parametrize("as_view", [True, False])
def test_averages_divide_by_all_ranks_or_by_those_that_train(
    wrap: Wrap, by_all: bool, as_view: bool
) -> None:
    model = wrap(linear(64.0), gradient_as_view=as_view)
    sgd = torch.optim.SGD(model.parameters(), lr=1.0)
    with model.join(divide_by_initial_world_size=by_all):
        for step in range(1 + RANK):
            step_on(model, sgd, batch(6.0))
            mean = 6.0 * (active(step) / SIZE if by_all else 1)
            assert gradient(model.module.weight) == pytest.approx([mean] * 2)
    lost = 6.0 * sum(active(step) / SIZE if by_all else 1 for step in range(SIZE))
    assert model.module.weight.tolist() == [pytest.approx([64 - lost] * 2)]
    equal_everywhere(model)
    # After the block all ranks make the same passes again.
    step_on(model, sgd, batch(RANK + 1.0))
    assert gradient(model.module.weight) == pytest.approx([(SIZE + 1) / 2] * 2)


def test_sums_of_the_ranks_that_train(wrap: Wrap) -> None:
    model = wrap(linear(1.0), average=False)
    with model.join():
        for step in range(RANK + 1):
            model.zero_grad()
            model(batch(1.0)).sum().backward()
            assert gradient(model.module.weight) == [active(step)] * 2


def test_ranks_without_any_batch_follow(wrap: Wrap) -> None:
    model = wrap(nn.Sequential(nn.BatchNorm1d(2, momentum=1.0), nn.Linear(2, 1)).double())
    sgd = torch.optim.SGD(model.parameters(), lr=1.0)
    with model.join():
        for step in range(2 if RANK == SIZE - 1 else 0):
            step_on(model, sgd, torch.tensor([[1.0 + step, 0], [3 + step, 4]]).double())
    equal_everywhere(model)
    assert model.module[0].running_mean.tolist() == [3, 2]
    # The buffers follow rank 0 again, after a training pass of all ranks.
    step_on(model, sgd, torch.full((2, 2), RANK).double())
    model(torch.zeros(2, 2).double())
    norm = model.module[0]
    assert (norm.running_mean.tolist(), norm.num_batches_tracked.item()) == ([0, 0], 4)


def test_buffers_follow_the_lowest_rank_that_trains(wrap: Wrap) -> None:
    norm = nn.BatchNorm1d(1, momentum=1.0, dtype=torch.float64)
    model = wrap(nn.Sequential(norm, nn.Linear(1, 1, dtype=torch.float64)))
    seen = []
    norm.register_forward_pre_hook(lambda *_: seen.append(norm.running_mean.item()))
    with model.join():
        for step in range(1 + RANK):
            model(torch.full((2, 1), 10.0 * RANK + step, dtype=torch.float64)).sum().backward()
    # In the first pass none has trained; before pass s all follow rank s, as of its pass s - 1.
    assert seen == [0.0, *(10.0 * step + step - 1 for step in range(1, 1 + RANK))]
    assert norm.running_mean.item() == 10.0 * (SIZE - 1) + SIZE - 1
    assert norm.num_batches_tracked.item() == SIZE


def test_buffers_that_do_not_follow_stay(wrap: Wrap) -> None:
    norm = nn.BatchNorm1d(1, momentum=1.0, dtype=torch.float64)
    model = wrap(nn.Sequential(norm, nn.Linear(1, 1).double()), broadcast_buffers=False)
    with model.join():
        for _ in range(1 + RANK):
            model(torch.full((2, 1), float(RANK), dtype=torch.float64)).sum().backward()
    assert norm.running_mean.item() == RANK


def test_parameters_that_ranks_leave_out(wrap: Wrap) -> None:
    model = wrap(Branches(), find_unused_parameters=True)
    layers = model.module.layers
    with model.join():
        for step in range(1 + RANK):
            model.zero_grad()
            model(batch(1.0), [0, 1] if RANK == SIZE - 1 else [0]).sum().backward()
            assert gradient(layers[0].weight) == pytest.approx([active(step) / SIZE] * 2)
            assert gradient(layers[1].weight) == pytest.approx([1 / SIZE] * 2)
            assert layers[2].weight.grad is None


def test_accumulation(wrap: Wrap) -> None:
    model = wrap(linear(1.0))
    with model.join():
        for step in range(1 + RANK):
            model.zero_grad()
            with model.no_sync():
                model(batch(2.0)).sum().backward()
            model(batch(1.0)).sum().backward()
            assert gradient(model.module.weight) == pytest.approx([3 * active(step) / SIZE] * 2)


def test_skipped_steps(wrap: Wrap) -> None:
    model = wrap(linear(1.0), nonfinite="skip_step")
    with model.join():
        for step in range(1 + RANK):
            # The last rank's last gradient is skipped, while the others wait at the end.
            last = RANK == SIZE - 1 == step
            model.zero_grad()
            model(batch(float("inf") if last else 1.0)).sum().backward()
            assert (model.module.weight.grad is None) == last
    model.zero_grad()
    model(batch(1.0)).sum().backward()
    assert gradient(model.module.weight) == pytest.approx([1.0] * 2)


@pytest.mark.parametrize("by_all", [True, False])
def test_a_training_run_equals_that_of_ddp(wrap: Wrap, gloo: None, by_all: bool) -> None:
    states = []
    for wrapper in (torch.nn.parallel.DistributedDataParallel, wrap):
        torch.manual_seed(3 + RANK)
        # DDP's buffers follow the highest rank; buffers do not change the weights.
        model = wrapper(Network(torch.float64))
        sgd = torch.optim.SGD(model.parameters(), lr=0.05)
        random = torch.Generator().manual_seed(17 + RANK)
        with model.join(divide_by_initial_world_size=by_all):
            for _ in range(2 + 2 * RANK):
                x = torch.randn(5, 1, 4, 4, generator=random, dtype=torch.float64)
                step_on(model, sgd, x)
        states.append([value.clone() for value in model.parameters()])
    for expected, found in zip(*states, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def pass_in_a_block(model: Any, blocks: int = 1, error: type[Exception] | None = None) -> None:
    """Make a pass in so many blocks; then raise the error."""
    if blocks:
        with model.join():
            pass_in_a_block(model, blocks - 1, error)
    else:
        model(batch(1.0)).sum().backward()
        if error is not None:
            raise error


@pytest.mark.skipif(SIZE == 1, reason="one rank differs from no other")
def test_a_rank_outside_the_block_is_an_error_on_all_ranks(wrap: Wrap) -> None:
    model = wrap(linear(1.0))
    with pytest.raises(OrderMismatch, match=r"called uneven\(\) at .*test_data_parallel_join"):
        pass_in_a_block(model, blocks=min(RANK, 1))


def test_a_block_in_a_block_is_refused(wrap: Wrap) -> None:
    model = wrap(linear(1.0))
    with pytest.raises(UsageError, match="called inside an uneven block"):
        pass_in_a_block(model, blocks=2)


def test_a_parameter_that_is_new_to_the_store_is_refused(wrap: Wrap) -> None:
    module = Branches()
    module.layers[3].weight.requires_grad_(False)
    model = wrap(module, find_unused_parameters=True)

    def train_the_last() -> None:
        with model.join():
            module.layers[3].weight.requires_grad_(True)
            model(batch(1.0), [3]).sum().backward()

    with pytest.raises(UsageError, match="init was called inside an uneven block"):
        train_the_last()


def test_an_exception_that_leaves_the_block_breaks_the_store(wrap: Wrap) -> None:
    model = wrap(linear(1.0))
    with pytest.raises(ZeroDivisionError):
        pass_in_a_block(model, error=ZeroDivisionError)
    if SIZE > 1:
        with pytest.raises(KVStoreError, match="uneven was interrupted by ZeroDivisionError"):
            model(batch(1.0)).sum().backward()
