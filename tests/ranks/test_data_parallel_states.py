"""`ncclkv.torch.DataParallel` as a part of other modules, and states of DDP."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import pytest

from ncclkv.errors import UsageError
from tests.harness.modules import MEAN_RANK, RANK, Network, Wrap, gradient, linear

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import nn  # noqa: E402

X = torch.full((1, 2), RANK + 1.0, dtype=torch.float64)


def network() -> Any:
    return Network(torch.float64)


def changed(state: Any) -> Any:
    return OrderedDict((name, value + 1) for name, value in state.items())


def assert_equal(state: Any, expected: Any) -> None:
    assert list(state) == list(expected)
    assert all(torch.equal(state[name], value) for name, value in expected.items())


def test_a_parent_of_wrapped_parts_loads_its_own_state(wrap: Wrap) -> None:
    gan = nn.ModuleDict({"g": wrap(network()), "d": wrap(linear(1.0))})
    bare = nn.ModuleDict({"g": network(), "d": linear(1.0)})
    assert list(gan.state_dict()) == list(bare.state_dict())
    assert [*dict(gan.named_modules())] == [*dict(bare.named_modules())]
    for state in (changed(gan.state_dict()), changed(bare.state_dict())):
        assert not any(gan.load_state_dict(state))
        assert_equal(gan.state_dict(), state)
    bare.load_state_dict(gan.state_dict())
    with pytest.raises(RuntimeError, match=r'Missing key.*"g.head.bias"'):
        gan.load_state_dict({name: each for name, each in state.items() if name != "g.head.bias"})
    with pytest.raises(RuntimeError, match=r'Unexpected key.*"g.other"'):
        gan.load_state_dict({**state, "g.other": torch.zeros(1)})
    with pytest.raises(UsageError, match="assign=True would replace the parameters"):
        gan.load_state_dict(state, assign=True)


@pytest.mark.parametrize("nested", [False, True])
def test_states_of_ddp_are_loaded(wrap: Wrap, nested: bool) -> None:
    model = wrap(network())
    state = changed(model.state_dict())
    of_ddp = OrderedDict((f"module.{name}", value) for name, value in state.items())
    given = dict(of_ddp)
    if nested:
        nn.ModuleDict({"g": model}).load_state_dict({f"g.{k}": v for k, v in of_ddp.items()})
    else:
        model.load_state_dict(of_ddp)
    assert_equal(model.state_dict(), state)
    assert list(of_ddp) == list(given)


def test_a_module_with_a_part_named_module_keeps_its_names(wrap: Wrap) -> None:
    model = wrap(nn.ModuleDict({"module": linear(1.0)}))
    model.load_state_dict({"module.weight": torch.full((1, 2), 3.0)})
    assert model.state_dict()["module.weight"].tolist() == [[3.0, 3.0]]


def test_names_lead_to_modules_and_parameters(wrap: Wrap) -> None:
    model = wrap(network())
    for name, part in model.named_modules():
        assert name == "" or model.get_submodule(name) is part
    for name, parameter in model.named_parameters():
        assert model.get_parameter(name) is parameter
    for name, buffer in model.named_buffers():
        assert model.get_buffer(name) is buffer
    assert model.head is model.module.head
    with pytest.raises(AttributeError, match="no attribute"):
        model.get_submodule("absent")


def test_a_functional_call_takes_other_values(wrap: Wrap) -> None:
    model = wrap(nn.Sequential(linear(1.0)))
    values = {"0.weight": torch.full((1, 2), 3.0, dtype=torch.float64)}
    out = torch.func.functional_call(model, values, X)
    assert out.item() == 6.0 * (RANK + 1)
    assert model.module[0].weight.tolist() == [[1.0, 1.0]]


def test_a_part_that_is_set_on_the_wrapper_is_the_modules(wrap: Wrap) -> None:
    model = wrap(network())
    model.head = head = nn.Linear(32, 3, dtype=torch.float64)
    assert model.module.head is head


def test_gradients_are_accumulated_by_ddps_attribute(wrap: Wrap) -> None:
    model = wrap(linear(1.0))
    assert model.require_backward_grad_sync is True
    for micro in range(3):
        model.require_backward_grad_sync = micro == 2
        model(X).sum().backward()
        if micro < 2:
            assert gradient(model.module.weight) == [(micro + 1) * (RANK + 1.0)] * 2
    assert gradient(model.module.weight) == pytest.approx([3 * (MEAN_RANK + 1)] * 2)
