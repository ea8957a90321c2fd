"""The forms in which a program gives parameters, and their gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ncclkv.errors import UsageError
from ncclkv.trainer.parameters import Parameters


def test_a_mapping_takes_gradients_by_name() -> None:
    weight, gradient = np.ones(2), np.zeros(2)
    params = Parameters({"w": weight, "b": np.ones(1)})
    assert params.grads == {"w": None, "b": None}
    params.grads["w"] = gradient
    names, gradients, values = params.gradients(ignore_missing=True)
    assert names == ["w"]
    assert gradients[0] is gradient
    assert values[0] is weight
    params.clear()
    assert params.grads == {"w": None, "b": None}


def test_triples_have_their_own_gradients() -> None:
    weight, gradient = np.ones(2), np.zeros(2)
    params = Parameters([("w", weight, gradient)])
    assert params.grads == {}
    params.clear()
    assert params.gradients(ignore_missing=False)[1][0] is gradient


def test_a_generator_is_read_once() -> None:
    params = Parameters((name, np.ones(1)) for name in "ab")
    assert params.names == ["a", "b"]


def test_a_missing_gradient_is_named() -> None:
    params = Parameters({"a": np.ones(1), "b": np.ones(1), "c": np.ones(1)})
    params.grads["a"] = np.ones(1)
    with pytest.raises(UsageError) as caught:
        params.gradients(ignore_missing=False)
    assert str(caught.value) == (
        "parameter 'b' has no gradient (2 of 3 have none); compute one before each step, or pass "
        "ignore_stale_grad=True"
    )


def test_parameters_of_torch_without_names_name_the_module() -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(UsageError, match=r"an item is a Parameter; give .*; or give the torch mod"):
        Parameters(torch.nn.Linear(2, 1).parameters())


def test_a_gradient_of_no_parameter_is_refused() -> None:
    params = Parameters({"a": np.ones(1)})
    params.grads.update(a=np.ones(1), x=np.ones(1))
    with pytest.raises(UsageError, match=r"grads has 'x', which is no parameter of the trainer"):
        params.gradients(ignore_missing=True)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({}, r"params: there are no parameters to train"),
        ([], r"params: there are no parameters to train"),
        ("weights", r"params is a str; give arrays by name"),
        (3, r"params is a int; give arrays by name"),
        ([np.ones(2)], r"params: an item is a ndarray; give \(name, value\)"),
        ([("a", np.ones(2), None, None)], r"params: an item is a tuple"),
        ({3: np.ones(2)}, r"params: the name 3 is a int; give a str"),
        ([("a", np.ones(1)), ("a", np.ones(1))], r"params: 'a' is the name of two parameters"),
    ],
)
def test_other_forms_are_refused(given: Any, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        Parameters(given)


W = np.ones((2, 2))


@pytest.mark.parametrize("other", [W, W[:], W.view()])
def test_an_array_under_two_names_is_refused(other: Any) -> None:
    with pytest.raises(UsageError, match=r"params: 'in' and 'out' are the same array; give it un"):
        Parameters({"in": W, "between": np.ones(1), "out": other})


def test_parts_of_an_array_and_empty_arrays_are_several_parameters() -> None:
    none = np.zeros(0)
    given = {"a": W[0], "b": W[1], "c": none, "d": none[:]}
    assert Parameters(given).names == ["a", "b", "c", "d"]


def test_tensors_of_one_storage_are_refused() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    weight = torch.nn.Parameter(torch.ones(2))
    for other in (weight, torch.nn.Parameter(weight.detach())):
        with pytest.raises(UsageError, match=r"params: 'in' and 'out' are the same array"):
            Parameters([("in", weight), ("out", other)])


def test_a_module_stands_for_its_trained_parameters() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    module = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 1))
    module[0].bias.requires_grad_(False)
    params = Parameters(module)
    assert params.names == ["0.weight", "1.weight", "1.bias"]
    assert params.grads == {}
    module(torch.ones(4, 2)).sum().backward()
    _, gradients, values = params.gradients(ignore_missing=False)
    assert gradients[2] is module[1].bias.grad
    assert values[2] is module[1].bias
    for given in (dict(module.named_parameters()), module.named_parameters()):
        assert Parameters(given).names == ["0.weight", "0.bias", "1.weight", "1.bias"]


def test_a_lazy_module_is_refused_by_name() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    module = torch.nn.Sequential(torch.nn.LazyLinear(3))
    with pytest.raises(UsageError, match=r"'0\.weight' of a lazy module has no shape"):
        Parameters(module)
    module(torch.ones(1, 2))
    assert Parameters(module).names == ["0.weight", "0.bias"]
