"""`ncclkv.torch.DataParallel` with compressed gradients: models of them, and the hooks of DDP."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.codecs import MODELS
from tests.harness.context import context_of
from tests.harness.modules import RANK, SIZE, Network, Wrap, trained

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import nn  # noqa: E402

LENGTHS = {"first": 700, "middle": 70_001, "bias": 5, "last": 40}
BUCKETS = (0, 4096, 1 << 20)


class Given(nn.Module):
    """A module whose gradients are the arrays that it is called with, by name."""

    def __init__(self) -> None:
        super().__init__()
        for name, count in LENGTHS.items():
            self.register_parameter(name, nn.Parameter(torch.zeros(count)))

    def forward(self, gradients: dict[str, np.ndarray]) -> Any:
        parameters = dict(self.named_parameters())
        return sum(
            (parameters[name] * torch.from_numpy(array)).sum() for name, array in gradients.items()
        )


def exact(rank: int, step: int, micro: int = 0) -> dict[str, np.ndarray]:
    """Return a rank's gradients, of eighths, so that sums of them are exact."""
    rng = np.random.default_rng([rank, step, micro])
    return {
        name: (rng.integers(-12, 13, count) / 8).astype(np.float32)
        for name, count in LENGTHS.items()
    }


def normal(rank: int, step: int) -> dict[str, np.ndarray]:
    """Return a rank's gradients, of any numbers and magnitudes."""
    rng = np.random.default_rng([rank, step, 7])
    return {
        name: (rng.standard_normal(count) * 10.0 ** rng.integers(-3, 3, count)).astype(np.float32)
        for name, count in LENGTHS.items()
    }


def found(model: Any) -> dict[str, np.ndarray]:
    return {name: each.grad.numpy().copy() for name, each in model.named_parameters()}


def same(got: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert [*got] == [*expected]
    for name, array in expected.items():
        np.testing.assert_array_equal(got[name], array, f"{name!r} on rank {RANK}")


def rounded(array: np.ndarray, kind: str) -> np.ndarray:
    """Return an array of float32 rounded to 16 bits, by torch."""
    dtype = torch.float16 if kind == "fp16" else torch.bfloat16
    result: np.ndarray = torch.from_numpy(array).to(dtype).float().numpy()
    return result


@pytest.mark.parametrize("kind", ["fp16", "bf16"])
@pytest.mark.parametrize("average", [True, False])
@pytest.mark.parametrize("as_view", [True, False])
def test_sums_of_16_bits_are_rounded_once_more(
    wrap: Wrap, kind: str, average: bool, as_view: bool
) -> None:
    for nbytes in BUCKETS:
        model = wrap(
            Given(),
            bucket_bytes=nbytes,
            compress=kind,
            average=average,
            gradient_as_view=as_view,
        )
        for step in range(3):
            model.zero_grad()
            model(exact(RANK, step)).backward()
            of_ranks = [exact(rank, step) for rank in range(SIZE)]
            divisor = np.float32(SIZE if average else 1)
            expected = {
                name: rounded(sum(rounded(each[name], kind) for each in of_ranks) / divisor, kind)
                for name in LENGTHS
            }
            same(found(model), expected)


@pytest.mark.parametrize("kind", ["1bit", "2bit"])
@pytest.mark.parametrize("average", [True, False])
def test_few_bits_are_those_of_the_model(wrap: Wrap, kind: str, average: bool) -> None:
    for nbytes in BUCKETS:
        compress = {"*": {"type": kind, "threshold": 0.25}, "bias": None, "last": "fp16"}
        model = wrap(Given(), bucket_bytes=nbytes, compress=compress, average=average)
        senders = [
            {name: MODELS[kind](0.25, LENGTHS[name]) for name in LENGTHS} for _ in range(SIZE)
        ]
        divisor = np.float32(SIZE if average else 1)
        for step in range(4):
            model.zero_grad()
            micros = 2 if step % 2 else 1
            if micros == 2:
                with model.no_sync():
                    model(exact(RANK, step, 1)).backward()
            model(exact(RANK, step)).backward()
            expected = {}
            for name in LENGTHS:
                of_ranks = [
                    sum(exact(rank, step, micro)[name] for micro in range(micros))
                    for rank in range(SIZE)
                ]
                if name in ("bias", "last"):
                    total = sum(of_ranks) / divisor
                    expected[name] = total if name == "bias" else rounded(total, "fp16")
                    continue
                models = [each[name] for each in senders]
                count = sum(
                    model.push(array)[1] for model, array in zip(models, of_ranks, strict=True)
                )
                unit = np.float32(models[0].step)
                expected[name] = count.astype(np.float32) * unit / divisor
            same(found(model), expected)


@pytest.mark.parametrize("by_all", [True, False])
def test_ranks_that_have_ended_send_nothing_and_keep_their_residual(
    wrap: Wrap, by_all: bool
) -> None:
    model = wrap(Given(), compress="2bit")
    senders = [{name: MODELS["2bit"](0.5, LENGTHS[name]) for name in LENGTHS} for _ in range(SIZE)]

    def expected(step: int, ranks: range, divisor: int) -> dict[str, np.ndarray]:
        result = {}
        for name in LENGTHS:
            counts = [senders[rank][name].push(exact(rank, step)[name])[1] for rank in ranks]
            result[name] = (sum(counts) * 0.5 / divisor).astype(np.float32)
        return result

    for _ in range(2):
        with model.join(divide_by_initial_world_size=by_all):
            for step in range(1 + 2 * RANK):
                model.zero_grad()
                model(exact(RANK, step)).backward()
                got = found(model)
                active = range((step + 1) // 2, SIZE)
                for name, array in expected(step, active, SIZE if by_all else len(active)).items():
                    np.testing.assert_allclose(got[name], array, rtol=1e-6, err_msg=name)
            for step in range(1 + 2 * RANK, 2 * SIZE - 1):  # for the residuals of the others
                expected(step, range((step + 1) // 2, SIZE), 1)


def test_a_parameter_that_no_rank_has_used_keeps_its_residuals(wrap: Wrap) -> None:
    model = wrap(Given(), compress="1bit", find_unused_parameters=True)
    sender = [MODELS["1bit"](0.5, LENGTHS["last"]) for _ in range(SIZE)]
    for step in range(5):
        model.zero_grad()
        gradients = exact(RANK, step)
        used = step % 2 == 0 or (step == 3 and RANK == SIZE - 1)
        if not used:
            del gradients["last"]
        model(gradients).backward()
        if step == 1:
            assert model.module.last.grad is None
            continue
        zeros = 0 * exact(0, 0)["last"]
        sent = [
            sender[rank].push(
                exact(rank, step)["last"] if step % 2 == 0 or rank == SIZE - 1 else zeros
            )[1]
            for rank in range(SIZE)
        ]
        expected = sum(sent).astype(np.float32) / np.float32(SIZE)
        np.testing.assert_array_equal(found(model)["last"], expected)


def test_the_hook_of_16_bits_is_that_of_ddp(wrap: Wrap, gloo: None) -> None:
    hooks = pytest.importorskip("torch.distributed.algorithms.ddp_comm_hooks.default_hooks")
    ddp = torch.nn.parallel.DistributedDataParallel(Given())
    own, named = wrap(Given()), wrap(Given(), compress="fp16")
    for model in ddp, own:
        model.register_comm_hook(None, hooks.fp16_compress_hook)
    for step in range(3):
        for model in ddp, own, named:
            model.zero_grad()
            model(normal(RANK, step)).backward()
        same(found(own), found(named))
        for name, expected in found(ddp.module).items():
            # torch rounds each part and each addition; here each part and the average are rounded.
            parts = [np.abs(normal(rank, step)[name]) for rank in range(SIZE)]
            ulp = np.spacing((sum(parts) / SIZE).astype(np.float16)).astype(np.float32)
            error = np.abs(found(own)[name] - expected) / ulp
            assert error.max() <= SIZE + 1


class Matrix(nn.Module):
    """A module whose gradient of a matrix is the array that it is called with."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.zeros(40, 30))
        self.bias = nn.Parameter(torch.zeros(40))

    def forward(self, array: Any) -> Any:
        return (self.matrix * array).sum() + (self.bias * array[:, 0]).sum()


def take_over(kv: Any, state: Any) -> None:
    """Give a store the residual and the Q of DDP's hook, whose bucket has the matrix last."""
    reductions, spec = context_of(kv).engine.reductions, kv.spec("matrix")
    q = np.ascontiguousarray(state.q_memory_dict[0].view(30, 2).T.numpy())
    reductions.bases.of(spec).restore(reductions.codec(spec), q)
    reductions.residuals.of(spec)[...] = state.error_dict[0].numpy()[-spec.size :]


def test_the_hook_of_powersgd_is_that_of_ddp(wrap: Wrap, gloo: None) -> None:
    hooks = pytest.importorskip("torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook")
    ddp, own = torch.nn.parallel.DistributedDataParallel(Matrix()), wrap(Matrix())
    state = hooks.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2)
    for model in ddp, own:
        model.register_comm_hook(state, hooks.powerSGD_hook)
    for step in range(6):
        rng = np.random.default_rng([RANK, step])
        array = torch.from_numpy(rng.standard_normal((40, 30)).astype(np.float32))
        for model in ddp, own:
            model.zero_grad()
            model(array).backward()
        if step == 2:  # both begin with a Q of their own
            take_over(own.kvstore, state)
            continue
        for name, expected in found(ddp.module).items():
            np.testing.assert_allclose(found(own)[name], expected, rtol=0, atol=1e-5)


def test_the_hook_of_allreduce_sends_whole_gradients(wrap: Wrap) -> None:
    hooks = pytest.importorskip("torch.distributed.algorithms.ddp_comm_hooks.default_hooks")
    own, plain = wrap(Given()), wrap(Given())
    own.register_comm_hook(None, hooks.allreduce_hook)
    for model in own, plain:
        model(normal(RANK, 0)).backward()
    same(found(own), found(plain))


def test_a_training_run_is_near_that_of_ddp_with_its_hook(wrap: Wrap, gloo: None) -> None:
    hooks = pytest.importorskip("torch.distributed.algorithms.ddp_comm_hooks.default_hooks")
    states = []
    for wrapper in (torch.nn.parallel.DistributedDataParallel, wrap):
        torch.manual_seed(3 + RANK)  # both take rank 0's parameters
        model = wrapper(Network(torch.float32))
        model.register_comm_hook(None, hooks.fp16_compress_hook)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        states.append(trained(model, 12, torch.float32, optimizer))
    for name, expected in states[0].items():
        torch.testing.assert_close(states[1][name], expected, rtol=0.02, atol=0.005)
