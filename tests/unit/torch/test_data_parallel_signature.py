"""`DataParallel` as other libraries inspect and install it."""

from __future__ import annotations

import inspect
from configparser import ConfigParser
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import nn  # noqa: E402

from ncclkv.torch import DataParallel  # noqa: E402

ROOT = Path(__file__).parents[3]


class Tokens(nn.Module):
    """A module with named inputs, as those of libraries for language models."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(3, 2)

    def forward(self, input_ids: Any, attention_mask: Any = None, *, labels: Any = None) -> Any:
        return self.table(input_ids), attention_mask, labels


class Doubled(DataParallel):
    """A wrapper of a program, with a forward pass of its own."""

    def forward(self, x: Any) -> Any:
        return 2 * super().forward(x)


def test_forward_has_the_signature_of_the_module() -> None:
    model = DataParallel(Tokens(), "local")
    found = inspect.signature(model.forward)
    assert found == inspect.signature(model.module.forward)
    assert list(found.parameters) == ["input_ids", "attention_mask", "labels"]
    model.module.forward = lambda x: x  # as libraries that cast inputs and outputs
    assert list(inspect.signature(model.forward).parameters) == ["x"]
    model.close()


def test_forward_passes_all_arguments() -> None:
    model = DataParallel(Tokens(), "local")
    ids = torch.tensor([1])
    for out in (model(ids, "mask", labels=3), model.forward(ids, "mask", labels=3)):
        assert out[1:] == ("mask", 3)
    out[0].sum().backward()
    assert model.module.table.weight.grad.sum() == 2
    model.close()


def test_a_wrapper_of_the_program_has_its_own_forward() -> None:
    model = Doubled(nn.Linear(2, 1, bias=False), "local")
    model(torch.ones(1, 2)).sum().backward()
    assert model.module.weight.grad.tolist() == [[2, 2]]
    assert list(inspect.signature(model.forward).parameters) == ["x"]
    model.close()


def test_the_extra_of_torch_brings_bfloat16() -> None:
    config = ConfigParser()
    config.read(ROOT / "setup.cfg")
    extras = config["options.extras_require"]
    assert "ncclkv[bf16]" in extras["torch"].split()
    assert extras["bf16"].split() == ["ml_dtypes"]
