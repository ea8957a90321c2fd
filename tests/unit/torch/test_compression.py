"""The argument `compress` of `DataParallel`: forms, errors, and the keys that it chooses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

import ncclkv
from ncclkv.compress.registry import CODECS
from ncclkv.errors import (
    DTypeMismatch,
    NotSupported,
    OrderMismatch,
    SpecMismatch,
    UnknownArgument,
    UsageError,
)
from tests.codecs import OneBit

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import nn  # noqa: E402

from ncclkv.torch import DataParallel  # noqa: E402


def module(dtype: Any = torch.float32) -> Any:
    """Return a module of the parameters 0.weight, 0.bias, 1.weight and 1.bias."""
    return nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1)).to(dtype)


def types(compress: Any, made: Any = None) -> dict[str, str | None]:
    """Return the type that compresses each parameter; frozen ones are not in the store."""
    model = DataParallel(made or module(), "local", compress=compress)
    kv = model.kvstore
    names = [name for name, _ in model.named_parameters() if name in kv]
    found = {name: kv.gradient_compression(name) for name in names}
    model.close()
    return {name: each and each["type"] for name, each in found.items()}


WEIGHTS, BIASES = ("0.weight", "1.weight"), ("0.bias", "1.bias")


def by_kind(weights: str | None, biases: str | None) -> dict[str, str | None]:
    return {**dict.fromkeys(WEIGHTS, weights), **dict.fromkeys(BIASES, biases)}


FORMS: dict[str, tuple[Any, Mapping[str, str | None]]] = {
    "none": (None, by_kind(None, None)),
    "a type": ("fp16", by_kind("fp16", "fp16")),
    "a dict": ({"type": "2bit", "threshold": 2.0}, by_kind("2bit", "2bit")),
    "a pattern": ({"*.bias": "bf16"}, by_kind(None, "bf16")),
    "later entries win": ({"*": "fp16", "*.bias": None}, by_kind("fp16", None)),
    "a name": (
        {"*": {"type": "1bit"}, "0.bias": None, "1.bias": "fp16"},
        {**by_kind("1bit", None), "1.bias": "fp16"},
    ),
}


@pytest.mark.parametrize("name", FORMS)
def test_each_form_chooses_the_types_of_parameters(name: str) -> None:
    compress, found = FORMS[name]
    assert types(compress) == found


def test_numbers_of_a_dict_reach_the_store() -> None:
    model = DataParallel(module(), "local", compress={"*": {"type": "2bit", "threshold": "2"}})
    found = model.kvstore.gradient_compression("0.bias")
    assert found == {"type": "2bit", "threshold": 2.0, "scope": "rank", "saturated": 0.0}
    assert "not encoded by 2bit, which takes float32" in model.kvstore.explain_plan()  # the counts
    model.close()


WRONG: dict[str, tuple[Any, type[Exception], str]] = {
    "type": ("3bit", UsageError, "compress: type '3bit' is unknown; .*use one of 1bit, 2bit, fp16"),
    "torch's name": ("float16", UsageError, "compress: type 'float16' .*did you mean 'fp16'?"),
    "flag": (True, UsageError, 'compress=True is not a dict; give one such as {"type": "2bit"}'),
    "empty": ({}, UsageError, "compress has no 'type'"),
    "parameter": (
        {"type": "2bit", "treshold": 1},
        UnknownArgument,
        "compress: 2bit has no parameter 'treshold'; did you mean 'threshold'",
    ),
    "value": ({"type": "2bit", "threshold": 0}, UsageError, "compress: 2bit: threshold=0 is not"),
    "pattern": (
        {"*.biases": "fp16"},
        UsageError,
        r"compress: no parameter matches '\*\.biases'; .*The names are '0.weight', '0.bias', '1.w",
    ),
    "DDP's name": (
        {"module.0.bias": "fp16"},
        UsageError,
        "no parameter matches 'module.0.bias'; did you mean '0.bias'",
    ),
    "typing error": ({"typ": "2bit"}, UsageError, "matches 'typ'; did you mean 'type'?"),
    "no str": ({0: "fp16"}, UsageError, r"compress: 0 is a int; give names .*, or patterns such"),
    "of a pattern": (
        {"*": {"type": "2bit", "threshold": -1}},
        UsageError,
        r"compress\['\*'\]: 2bit: threshold=-1 is not a finite number above 0",
    ),
    "without effect": (
        {"*.bias": None, "*": "fp16"},
        UsageError,
        r"compress: '\*\.bias' has no effect, because later .* move '\*\.bias' behind the more gen",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_argument_is_refused(name: str) -> None:
    compress, error, words = WRONG[name]
    with pytest.raises(error, match=words):
        DataParallel(module(), "local", compress=compress)


def test_a_dtype_that_a_type_does_not_compress_is_refused() -> None:
    with pytest.raises(DTypeMismatch, match=r"2bit compresses float32, .* '0.weight' of float64"):
        DataParallel(module(torch.float64), "local", compress="2bit")
    with pytest.raises(DTypeMismatch, match=r"'0.bias' of bfloat16; leave them out, or convert"):
        DataParallel(module(torch.bfloat16), "local", compress={"0.bias": "fp16"})
    mixed = module(torch.float64)
    mixed[1].float()
    assert types("2bit", mixed) == {**by_kind(None, None), "1.weight": "2bit", "1.bias": "2bit"}
    frozen = module(torch.float64)
    frozen.requires_grad_(False)
    frozen[0].float().requires_grad_(True)
    assert types({"*": "2bit"}, frozen)["0.weight"] == "2bit"
    frozen[1].float()
    frozen[0].double()
    with pytest.raises(DTypeMismatch, match="'0.weight' of float64"):
        types("2bit", frozen)


def test_no_store_is_made_for_a_wrong_argument(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ncclkv.torch.module_checks.create", None)
    with pytest.raises(UsageError, match="type '3bit' is unknown"):
        DataParallel(module(), "local", compress="3bit")


@pytest.fixture
def few_senders(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each store refuse topk."""
    monkeypatch.setattr(CODECS["topk"], "most_senders", 0)


@pytest.mark.usefixtures("few_senders")
def test_a_store_that_refuses_a_type_is_free_again() -> None:
    made = module()
    with ncclkv.create("local") as kv:
        with pytest.raises(NotSupported, match="topk sums the codes of at most 0 senders"):
            DataParallel(made, kv, compress={"0.bias": "topk"})
        model = DataParallel(made, kv, compress="2bit")
        model(torch.ones(1, 2)).sum().backward()


@pytest.mark.usefixtures("few_senders")
def test_a_store_made_here_is_closed_if_it_refuses_a_type(monkeypatch: pytest.MonkeyPatch) -> None:
    stores = []

    def create(*arguments: Any, **options: Any) -> Any:
        stores.append(ncclkv.create(*arguments, **options))
        return stores[-1]

    monkeypatch.setattr("ncclkv.torch.module_checks.create", create)

    def work() -> None:
        with pytest.raises(NotSupported, match="topk sums the codes of at most 0 senders"):
            DataParallel(module(), "threads", compress="topk")
        model = DataParallel(module(), "threads", compress="fp16")
        model(torch.ones(1, 2)).sum().backward()
        model.close()

    ncclkv.testing.run_ranks(2, work)
    assert ["closed" in repr(kv) for kv in stores] == [True] * 4


def test_ranks_that_give_other_types_are_refused() -> None:
    def work(given: list[Any]) -> Any:
        kv = ncclkv.create("threads")
        DataParallel(module(), kv, compress=given[kv.rank])

    words = "rank 0 has compression_params={'type': 'fp16', .*rank 1 has .*'bf16'"
    with pytest.raises(SpecMismatch, match=words):
        ncclkv.testing.run_ranks(2, lambda: work(["fp16", "bf16"]))
    with pytest.raises(OrderMismatch, match="set_gradient_compression"):
        ncclkv.testing.run_ranks(2, lambda: work(["fp16", None]))


def test_a_parameter_that_replaces_another_has_the_same_rule() -> None:
    made = module()
    model = DataParallel(made, "local", compress={"*": "fp16", "1.bias": None, "1.weight": "2bit"})
    made[1] = nn.Linear(2, 3)
    made[1].extra = nn.Parameter(torch.ones(3))
    made[1].register_forward_hook(lambda part, _, out: out * part.extra)
    model(torch.ones(1, 2)).sum().backward()
    kv = model.kvstore
    assert kv.gradient_compression("1.bias (2)") is None
    assert kv.gradient_compression("1.weight (2)")["type"] == "2bit"
    assert kv.gradient_compression("1.extra")["type"] == "fp16"
    assert {*made[1].weight.grad.unique().tolist()} <= {-0.5, 0.0, 0.5}
    model.close()


class Given(nn.Module):
    """A module whose gradient is what it is called with; None leaves the parameter out."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.used = nn.Parameter(torch.zeros(count))
        self.other = nn.Parameter(torch.zeros(count))

    def forward(self, used: Any, other: Any) -> Any:
        terms = (self.used, used), (self.other, other)
        return sum((each * by).sum() for each, by in terms if by is not None)


def test_a_pass_without_a_parameter_leaves_its_basis() -> None:
    class Used(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.matrix = nn.Parameter(torch.zeros(40, 30))
            self.bias = nn.Parameter(torch.zeros(40))

        def forward(self, by: Any) -> Any:
            return self.bias.sum() if by is None else (self.matrix * by).sum() + self.bias.sum()

    compress = {"type": "powersgd", "rank": 2, "start_powerSGD_iter": 1}
    steps = [torch.as_tensor(each) for each in np.random.default_rng(0).normal(size=(4, 40, 30))]
    found = []
    for passes in (steps, [None, *steps[:2], None, steps[2], None, None, steps[3]]):
        model = DataParallel(Used(), "local", find_unused_parameters=True, compress=compress)
        for by in passes:
            model.zero_grad()
            model(by).backward()
        found.append(model.module.matrix.grad.tolist())
        model.close()
    assert found[0] == found[1]


@pytest.mark.parametrize("cleared", [True, False])
def test_a_pass_without_a_parameter_leaves_its_residual(cleared: bool) -> None:
    model = DataParallel(Given(4), "local", find_unused_parameters=True, compress="1bit")
    sender = OneBit(0.5, 4)
    eighths = torch.arange(-2, 2) / 4
    for step in range(6):
        if cleared or step % 2 == 0:
            model.zero_grad()
        before = model.module.other.grad
        model(eighths, eighths * 5 if step % 2 == 0 else None).sum().backward()
        if step % 2:
            assert model.module.other.grad is before
            continue
        sent = sender.push(np.asarray(eighths * 5))[1]
        assert model.module.other.grad.tolist() == sent.tolist()
    model.close()
