"""`DataParallel` that is dropped without close: its store and its module are freed."""

from __future__ import annotations

import gc
import os
from typing import Any
from weakref import ref

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import nn  # noqa: E402

from ncclkv.torch import DataParallel  # noqa: E402


def trained(module: Any, **options: Any) -> Any:
    """Return a wrapper that has made a training pass."""
    model = DataParallel(module, "local", **options)
    model(torch.ones(2, 2)).sum().backward()
    return model


def network() -> Any:
    return nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Linear(2, 1))


@pytest.mark.parametrize("as_view", [True, False])
def test_a_wrapper_without_a_holder_is_freed(as_view: bool) -> None:
    model = trained(network(), gradient_as_view=as_view)
    parts = model, model._gradients, model.kvstore, model.module, model.module[0].weight
    references = [*map(ref, parts)]
    del model, parts
    gc.collect()
    assert [each() for each in references] == [None] * 5


def test_wrappers_without_holders_keep_no_descriptors() -> None:
    counts = []
    for _ in range(4):
        trained(network())
        gc.collect()
        counts.append(len(os.listdir("/proc/self/fd")))
    assert counts[1:] == counts[1:2] * 3


def test_a_graph_that_outlives_the_wrapper_reduces_nothing() -> None:
    module = network()
    model = trained(module)
    loss = model(torch.ones(2, 2)).sum()
    gradients = ref(model._gradients)
    del model
    gc.collect()
    assert gradients() is None
    module.zero_grad()
    loss.backward()
    assert module[2].bias.grad.tolist() == [2.0]


def test_an_exception_in_backward_keeps_nothing() -> None:
    def failing(_: Any) -> None:
        raise ZeroDivisionError

    model = DataParallel(network(), "local")
    model.module[0].weight.register_hook(failing)
    with pytest.raises(ZeroDivisionError):
        model(torch.ones(2, 2)).sum().backward()
    references = [ref(model), ref(model._gradients), ref(model.kvstore)]
    del model
    gc.collect()
    assert [each() for each in references] == [None] * 3
