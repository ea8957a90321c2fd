"""The optimizer SGD: its arguments, settings and config."""

from __future__ import annotations

import copy
import pickle
from functools import partial
from typing import Any

import numpy as np
import pytest

from ncclkv.errors import ReadOnlyAttribute, UsageError
from ncclkv.kernels.host import HostKernels
from ncclkv.optimizer import SGD, Optimizer, State, create
from ncclkv.optimizer.restore import from_config, set_config
from tests.optimizers.cases import OptimizerCases
from tests.sgd_steps import segments_of

NO_NUMBERS = [float("nan"), float("inf"), "0.1", b"0.1", None, 1j, [0.1], 10**400]


def pickled(optimizer: Optimizer) -> Any:
    """Return the optimizer after pickling."""
    return pickle.loads(pickle.dumps(optimizer))


def _update(optimizer: Optimizer, w: np.ndarray, g: np.ndarray, states: list[np.ndarray]) -> None:
    """Update key 'a' once."""
    scalars = np.array([optimizer.scalars("a", 1)])
    whole = segments_of(0, w.size)
    HostKernels().update(optimizer.program, w, g, states, scalars, whole)


def _step(optimizer: Optimizer, states: list[np.ndarray]) -> float:
    """Update a weight of 0 once by a gradient of 1."""
    w = np.zeros(1)
    _update(optimizer, w, np.ones(1), states)
    return float(w[0])


class TestSGD(OptimizerCases):
    name = "sgd"


def test_the_defaults_are_mxnets() -> None:
    assert _step(SGD(), []) == -0.01
    assert SGD().config() == {
        "name": "sgd",
        "learning_rate": 0.01,
        "momentum": 0.0,
        "wd": 0.0,
        "rescale_grad": 1.0,
        "clip_gradient": None,
        "lr_mult": {},
        "wd_mult": {},
    }


def test_momentum_decides_whether_there_is_a_state() -> None:
    assert SGD().states == ()
    optimizer = SGD(learning_rate=0.5, momentum=0.5)
    assert optimizer.states == (State("momentum", "compute", "zeros"),)
    momenta = np.zeros(1)
    assert [_step(optimizer, [momenta]) for _ in range(3)] == [-0.5, -0.75, -0.875]
    with pytest.raises(AttributeError):
        optimizer.momentum = 0.0  # type: ignore[misc]


def test_an_assignment_to_a_number_that_stays_names_another_way() -> None:
    for sgd, name, value in (
        (SGD(momentum=0.5), "momentum", 0.25),
        (SGD(momentum=0.5), "multi_precision", True),
    ):
        before = sgd.config()
        with pytest.raises(ReadOnlyAttribute) as caught:
            setattr(sgd, name, value)
        assert str(caught.value) == (
            f"{name} of {sgd!r} cannot be set to {value}, because the states depend on {name}; "
            f"make an optimizer with {name}={value}, and give it to set_optimizer or to a new "
            f"Trainer"
        )
        assert isinstance(caught.value, (UsageError, AttributeError))
        assert sgd.config() == before
    with pytest.raises(UsageError, match=r"momentum is an int of 6,644 bits"):
        SGD().momentum = 10**2000  # type: ignore[misc]


def test_settings_take_effect_at_the_next_update() -> None:
    optimizer = SGD(learning_rate=1.0)
    assert _step(optimizer, []) == -1
    optimizer.learning_rate = 0.5
    assert _step(optimizer, []) == -0.5
    optimizer.set_learning_rate(0.25)
    assert _step(optimizer, []) == -0.25
    optimizer.rescale_grad = 4.0
    assert _step(optimizer, []) == -1
    optimizer.clip_gradient = 2.0
    assert _step(optimizer, []) == -0.5


def test_factors_multiply_learning_rate_and_decay() -> None:
    w = np.full(1, 2.0)
    optimizer = SGD(learning_rate=1.0, wd=0.5)
    optimizer.lr_mult, optimizer.wd_mult = {"a": 0.5}, {"a": 0.25}
    _update(optimizer, w, np.zeros(1), [])
    assert w[0] == 2 - 0.5 * (0.5 * 0.25 * 2)


def test_factors_by_key_are_replaced_as_a_whole() -> None:
    optimizer = SGD()
    optimizer.set_lr_mult({"a": 2, "b": 3})
    optimizer.set_lr_mult({"b": 4})
    optimizer.set_wd_mult({7: 0})
    assert (optimizer.lr_mult, optimizer.wd_mult) == ({"b": 4.0}, {7: 0.0})
    assert (optimizer.config()["lr_mult"], optimizer.config()["wd_mult"]) == ({"b": 4}, {7: 0})


def test_a_config_does_not_change_with_its_optimizer() -> None:
    optimizer = SGD()
    optimizer.set_lr_mult({"a": 2})
    config = optimizer.config()
    optimizer.lr_mult["a"] = 3.0
    assert config["lr_mult"] == {"a": 2.0}


@pytest.mark.parametrize("name", ["learning_rate", "momentum", "wd", "rescale_grad"])
@pytest.mark.parametrize("value", NO_NUMBERS)
def test_arguments_are_finite_numbers(name: str, value: Any) -> None:
    if (name, value) == ("learning_rate", None):
        assert SGD(learning_rate=None).learning_rate == 0.01
        return
    with pytest.raises(UsageError) as caught:
        SGD(**{name: value})
    assert str(caught.value) == f"{name} is {value!r}; give a finite number"


@pytest.mark.parametrize("name", ["learning_rate", "momentum", "wd"])
def test_arguments_are_not_negative(name: str) -> None:
    with pytest.raises(UsageError, match=f"^{name} is -0.1; give a number of at least 0$"):
        SGD(**{name: -0.1})


@pytest.mark.parametrize("bound", [0, -1.0])
def test_clipping_bounds_are_above_zero(bound: float) -> None:
    with pytest.raises(UsageError, match=r"give a bound above 0, or None to clip nothing$"):
        SGD(clip_gradient=bound)
    with pytest.raises(UsageError, match=r"^clip_gradient is 'x'; give a finite number$"):
        SGD(clip_gradient="x")  # type: ignore[arg-type]


def test_a_refused_learning_rate_changes_nothing() -> None:
    optimizer = SGD(learning_rate=0.5)
    with pytest.raises(UsageError, match="learning_rate is nan"):
        optimizer.set_learning_rate(float("nan"))
    assert optimizer.learning_rate == 0.5


@pytest.mark.parametrize("name", ["learning_rate", "wd", "rescale_grad"])
@pytest.mark.parametrize("value", NO_NUMBERS)
def test_assigned_values_are_checked_like_arguments(name: str, value: Any) -> None:
    optimizer = SGD(**{name: 0.5})
    with pytest.raises(UsageError) as caught:
        setattr(optimizer, name, value)
    assert str(caught.value) == f"{name} is {value!r}; give a finite number"
    assert optimizer.config()[name] == 0.5


def test_bounds_hold_for_assigned_values() -> None:
    optimizer = SGD(clip_gradient=0.5)
    with pytest.raises(UsageError, match=r"^wd is -0.1; give a number of at least 0$"):
        optimizer.wd = -0.1
    with pytest.raises(UsageError, match=r"^clip_gradient is 0; give a bound above 0"):
        optimizer.clip_gradient = 0
    assert (optimizer.wd, optimizer.clip_gradient) == (0.0, 0.5)
    optimizer.clip_gradient = None
    assert optimizer.clip_gradient is None


@pytest.mark.parametrize("name", ["lr_mult", "wd_mult"])
def test_assigned_factors_are_checked_and_copied(name: str) -> None:
    optimizer, factors = SGD(), {"a": 2}
    setattr(optimizer, name, factors)
    factors["a"] = 3
    for wrong, reason in (([1.0], f"{name} is a list"), ({"a": "x"}, f"{name} of key 'a' is 'x'")):
        with pytest.raises(UsageError, match=reason):
            setattr(optimizer, name, wrong)
    assert optimizer.config()[name] == {"a": 2.0}


@pytest.mark.parametrize("name", ["lr_mult", "wd_mult"])
def test_items_added_to_factors_are_checked_by_config(name: str) -> None:
    optimizer = SGD()
    getattr(optimizer, name)["a"] = np.ones(3)
    with pytest.raises(UsageError, match=rf"^{name} of key 'a' is array.*; give a finite number$"):
        optimizer.config()


def test_factors_are_a_mapping_of_finite_numbers() -> None:
    optimizer = SGD()
    with pytest.raises(UsageError, match=r"^lr_mult is a list; give a dict of factors by key$"):
        optimizer.set_lr_mult([1.0])  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"^wd_mult of key 'w' is nan; give a finite number$"):
        optimizer.set_wd_mult({"w": float("nan")})
    assert (optimizer.lr_mult, optimizer.wd_mult) == ({}, {})


@pytest.mark.parametrize("name", ["sgd", "SGD", "Sgd"])
def test_create_takes_names_in_any_case(name: str) -> None:
    optimizer = create(name, learning_rate=np.float32(0.5), momentum=0.5)
    assert type(optimizer) is SGD
    assert repr(optimizer) == (
        "SGD(learning_rate=0.5, momentum=0.5, wd=0.0, rescale_grad=1.0, clip_gradient=None)"
    )


@pytest.mark.parametrize("name", ["q", "", None, SGD])
def test_create_refuses_unknown_names_and_lists_those_it_knows(name: Any) -> None:
    with pytest.raises(UsageError) as caught:
        create(name)
    wrong = "is unknown" if isinstance(name, str) else "is not a str"
    assert str(caught.value).startswith(f"optimizer {name!r} {wrong}; use one of sgd, nag, adam, ")


@pytest.mark.parametrize("make", [SGD, partial(create, "sgd")], ids=["SGD", "create"])
@pytest.mark.parametrize(
    ("given", "meant"),
    [("lr", "learning_rate"), ("weight_decay", "wd"), ("momentun", "momentum"), ("zz", None)],
)
def test_unknown_arguments_are_refused_with_the_nearest_known_one(
    make: Any, given: str, meant: str | None
) -> None:
    with pytest.raises(UsageError) as caught:
        make(**{given: 0.1})
    hint = f"did you mean {meant!r}? " if meant else ""
    assert str(caught.value) == (
        f"SGD has no argument {given!r}; {hint}Valid: learning_rate, momentum, wd, "
        "rescale_grad, clip_gradient, lr_scheduler, begin_num_update, "
        "param_idx2name, multi_precision, clip_global_norm"
    )


def test_the_nearest_name_of_an_optimizer_is_shown() -> None:
    with pytest.raises(UsageError, match="'sdg' is unknown; did you mean 'sgd'"):
        create("sdg")


def test_arguments_go_by_name() -> None:
    with pytest.raises(TypeError, match="positional"):
        SGD(0.9)  # type: ignore[misc]


@pytest.mark.parametrize(
    "change",
    [
        lambda sgd: setattr(sgd, "learning_rate", 0.25),
        lambda sgd: sgd.set_learning_rate(0.01),
        lambda sgd: setattr(sgd, "wd", 0.5),
        lambda sgd: setattr(sgd, "rescale_grad", 0.5),
        lambda sgd: setattr(sgd, "clip_gradient", 1.0),
        lambda sgd: setattr(sgd, "lr_mult", {}),
        lambda sgd: sgd.set_wd_mult({"a": 1}),
        lambda sgd: setattr(sgd, "something_of_a_subclass", 1),
        lambda sgd: sgd.lr_mult.__setitem__("a", 2.0),
        lambda sgd: sgd.lr_mult.update(a=2.0),
        lambda sgd: sgd.lr_mult.setdefault("b", 2.0),
        lambda sgd: sgd.lr_mult.__ior__({"b": 2.0}),
        lambda sgd: sgd.lr_mult.pop("a"),
        lambda sgd: sgd.lr_mult.popitem(),
        lambda sgd: sgd.lr_mult.__delitem__("a"),
        lambda sgd: sgd.wd_mult.clear(),
        lambda sgd: sgd.idx2name.update({0: "a"}),
    ],
)
def test_every_change_makes_another_version(change: Any) -> None:
    optimizer = SGD()
    optimizer.lr_mult["a"] = 1.0
    before = optimizer.version
    assert optimizer.version == before
    optimizer.config(), optimizer.snapshot(), optimizer.scalars("a", 1)
    assert optimizer.version == before
    change(optimizer)
    assert optimizer.version != before


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickled])
def test_a_copy_has_the_same_numbers(copied: Any) -> None:
    optimizer = SGD(learning_rate=0.5, momentum=0.5)
    optimizer.lr_mult["a"] = 2.0
    other = copied(optimizer)
    assert other.config() == optimizer.config()
    version = other.version
    other.lr_mult["a"] = 3.0
    assert other.version != version


def test_snapshots_between_two_changes_share_their_factors() -> None:
    optimizer = SGD()
    optimizer.lr_mult["a"] = 2
    before = optimizer.snapshot()
    optimizer.learning_rate = 0.5
    after = optimizer.snapshot()
    assert before.lr_mult is after.lr_mult
    assert (before.learning_rate, after.learning_rate) == (0.01, 0.5)
    optimizer.lr_mult["a"] = 3
    assert (after.lr_mult, optimizer.snapshot().lr_mult) == ({"a": 2.0}, {"a": 3.0})


NAMES = {0: "fc_weight", 1: "fc_bias", 2: "bn_gamma", 3: "bn_beta", 4: "conv.weight"}


def test_keys_may_have_their_factors_by_name() -> None:
    """Compare with MXNet 1.9.1's weight decays and learning rates of keys 0 to 5."""
    sgd = SGD(learning_rate=0.01, wd=0.5, param_idx2name=NAMES)
    assert sgd.wd_mult == {"fc_bias": 0, "bn_beta": 0, "conv.weight": 0}
    assert [sgd.wd_of(key) for key in range(6)] == [0.5, 0.0, 0.5, 0.0, 0.0, 0.5]
    sgd.set_wd_mult({"fc_bias": 2.0, 0: 3.0})
    assert [sgd.wd_of(key) for key in range(6)] == [1.5, 1.0, 0.5, 0.0, 0.0, 0.5]
    sgd.set_lr_mult({"fc_bias": 2.0, 0: 3.0, "fc_weight": 9})
    assert [sgd.learning_rate_of(key) for key in range(6)] == [0.03, 0.02, 0.01, 0.01, 0.01, 0.01]
    sgd.wd_mult = {}
    assert [sgd.wd_of(key) for key in range(6)] == [0.5] * 6


def test_names_are_part_of_the_config() -> None:
    sgd = SGD(wd=0.5, param_idx2name=NAMES)
    assert sgd.config()["idx2name"] == NAMES
    other = from_config(sgd.config())
    assert (other.config(), other.wd_of(1)) == (sgd.config(), 0.0)
    set_config(other, SGD().config())
    assert other.idx2name == {}
    assert sgd.idx2name == NAMES


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        ({"a": "b"}, "idx2name has the item 'a': 'b'"),
        ({1: 2}, "idx2name has the item 1: 2"),
        ({True: "x"}, "idx2name has the item True: 'x'"),
    ],
)
def test_names_are_text_by_int(names: Any, reason: str) -> None:
    with pytest.raises(UsageError, match=rf"^param_{reason}; give names \(str\) by int$"):
        SGD(param_idx2name=names)
    sgd = SGD()
    sgd.idx2name.update(names)
    with pytest.raises(UsageError, match=f"^{reason}"):
        sgd.config()
    with pytest.raises(UsageError, match="^idx2name is a list; give a dict of names by key$"):
        sgd.idx2name = ["a"]  # type: ignore[assignment]


def test_multi_precision_is_a_flag_that_stays() -> None:
    sgd = SGD(momentum=0.5, multi_precision=True)
    assert (sgd.multi_precision, sgd.config()["multi_precision"]) == (True, True)
    assert "multi_precision" not in SGD().config()
    assert [state.name for state in sgd.states_for(np.dtype("float16"))] == ["momentum", "master"]
    for dtype, optimizer in (("float32", sgd), ("float16", SGD(momentum=0.5))):
        assert [state.name for state in optimizer.states_for(np.dtype(dtype))] == ["momentum"]
    with pytest.raises(AttributeError):
        sgd.multi_precision = False  # type: ignore[misc]
    with pytest.raises(UsageError, match="^multi_precision=1 is not a bool"):
        SGD(multi_precision=1)  # type: ignore[arg-type]
    set_config(sgd, SGD(momentum=0.5).config())
    with pytest.raises(
        UsageError, match="^multi_precision of SGD.* cannot become True; call set_op"
    ):
        set_config(SGD(momentum=0.5), sgd.config())
