"""`DataParallel.register_comm_hook`: hooks of torch's own are translated, others are refused."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ncclkv.errors import DTypeMismatch, NotSupported, UsageError

torch = pytest.importorskip("torch", reason="torch is not installed")
if not torch.distributed.is_available():
    pytest.skip("torch has no torch.distributed", allow_module_level=True)

from torch import nn  # noqa: E402
from torch.distributed.algorithms.ddp_comm_hooks import (  # noqa: E402
    default_hooks,
    powerSGD_hook,
)

from ncclkv.torch import DataParallel  # noqa: E402
from ncclkv.torch.comm_hooks import compress_of  # noqa: E402
from tests.harness.context import context_of  # noqa: E402


@pytest.fixture
def model() -> Iterator[Any]:
    made = DataParallel(nn.Linear(2, 1), "local")
    yield made
    made.close()


class Group:
    """Stands in for a process group."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks

    def size(self) -> int:
        return self.ranks


DEFAULT = {"allreduce_hook": None, "fp16_compress_hook": "fp16", "bf16_compress_hook": "bf16"}


@pytest.mark.parametrize("name", DEFAULT)
@pytest.mark.parametrize("state", [None, Group(1)], ids=["none", "group"])
def test_a_hook_of_torch_is_translated(model: Any, name: str, state: Any) -> None:
    model.register_comm_hook(state, getattr(default_hooks, name))
    found = model.kvstore.gradient_compression("weight")
    assert (found and found["type"]) == DEFAULT[name]
    third = torch.full((1, 2), 1 / 3)
    model(third).sum().backward()
    dtype = {None: torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}[DEFAULT[name]]
    expected = third.to(dtype).float()
    assert model.module.weight.grad.tolist() == expected.tolist()


def test_the_numbers_of_a_state_of_powersgd_are_read(model: Any) -> None:
    numbers = {
        "matrix_approximation_rank": 3,
        "start_powerSGD_iter": 20,
        "min_compression_rate": 1.5,
        "use_error_feedback": False,
        "warm_start": False,
        "random_seed": 11,
    }
    state = powerSGD_hook.PowerSGDState(Group(1), **numbers, orthogonalization_epsilon=1e-8)
    found = compress_of(state, powerSGD_hook.powerSGD_hook, 1)
    assert found == {"type": "powersgd", **numbers}
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    rule = context_of(model.kvstore).engine.reductions.rule("weight")
    assert rule.codec.parameters == {**found, "scope": "rank"}


def own(state: Any, bucket: Any) -> Any:
    return bucket


OTHERS: dict[str, Callable[..., Any]] = {
    "own of tests.unit.torch.test_comm_hooks": own,
    "partial of": functools.partial(own, 1),
    "batched_powerSGD_hook": powerSGD_hook.batched_powerSGD_hook,
    "fp16_compress_wrapper_hook": default_hooks.fp16_compress_wrapper(default_hooks.allreduce_hook),
}


@pytest.mark.parametrize("name", OTHERS)
def test_any_other_hook_is_refused_by_name(model: Any, name: str) -> None:
    words = "allreduce_hook, fp16_compress_hook, bf16_compress_hook, powerSGD_hook"
    with pytest.raises(NotSupported, match=r"DataParallel\(\.\.\., compress='fp16'\)") as caught:
        model.register_comm_hook(None, OTHERS[name])
    assert name in str(caught.value)
    assert words in str(caught.value)


STATES: dict[str, tuple[Any, Any, type[Exception], str]] = {
    "other ranks": (
        Group(2),
        default_hooks.fp16_compress_hook,
        NotSupported,
        "fp16_compress_hook was given a process group of 2 ranks, and the store has 1; give None",
    ),
    "of powersgd": (
        powerSGD_hook.PowerSGDState(Group(3)),
        powerSGD_hook.powerSGD_hook,
        NotSupported,
        "powerSGD_hook was given a process group of 3 ranks",
    ),
    "no group": (
        {"threshold": 1},
        default_hooks.allreduce_hook,
        UsageError,
        "the state of allreduce_hook is a dict; give None, or a process group",
    ),
    "no state": (
        None,
        powerSGD_hook.powerSGD_hook,
        UsageError,
        r"the state of powerSGD_hook is a NoneType; give a PowerSGDState\(None, matrix_appro",
    ),
    "no hook": (
        None,
        "fp16",
        UsageError,
        "hook is a str, which cannot be called; .*compress='fp16'",
    ),
}


@pytest.mark.parametrize("name", STATES)
def test_a_wrong_state_is_refused(model: Any, name: str) -> None:
    state, hook, error, words = STATES[name]
    with pytest.raises(error, match=f"^register_comm_hook: .*{words}"):
        model.register_comm_hook(state, hook)


@pytest.mark.parametrize("hook", [default_hooks.allreduce_hook, default_hooks.fp16_compress_hook])
def test_a_second_hook_is_refused(model: Any, hook: Any) -> None:
    model.register_comm_hook(None, hook)
    with pytest.raises(UsageError, match="was called again, or with compress=; call it once"):
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)


def test_a_hook_beside_compress_is_refused() -> None:
    model = DataParallel(nn.Linear(2, 1), "local", compress="2bit")
    with pytest.raises(UsageError, match="was called again, or with compress=; "):
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    assert model.kvstore.gradient_compression("weight")["type"] == "2bit"
    model.close()


def test_a_hook_after_a_forward_pass_is_refused(model: Any) -> None:
    with torch.no_grad():
        model(torch.ones(1, 2))  # reduces nothing
    model(torch.ones(1, 2))
    with pytest.raises(UsageError, match="after a forward pass; call it once, before the first"):
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)


def test_a_hook_after_an_evaluation_is_taken(model: Any) -> None:
    with torch.no_grad():
        model(torch.ones(1, 2))
    model.register_comm_hook(None, default_hooks.fp16_compress_hook)


def test_a_hook_that_finds_nothing_to_compress_is_refused() -> None:
    model = DataParallel(nn.Linear(2, 1).bfloat16(), "local")
    with pytest.raises(DTypeMismatch, match="register_comm_hook: fp16 compresses float32 and"):
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    model.close()
