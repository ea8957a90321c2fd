"""`register` and `create`: optimizers by name."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import ncclkv
from ncclkv.errors import UsageError
from ncclkv.optimizer import SGD, create, register, registry


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Restore the registered classes at the end of a test."""
    monkeypatch.setattr(registry, "_BY_NAME", dict(registry._BY_NAME))
    yield
    SGD.name = "sgd"


def _defined(name: str = "Halved") -> Any:
    """Return a new class of that name, as a notebook's cell defines it."""

    def learning_rate_of(self: Any, key: Any) -> float:
        return 0.5 * SGD.learning_rate_of(self, key)

    body = {"learning_rate_of": learning_rate_of, "__module__": __name__}
    return type(name, (SGD,), body)


def test_a_registered_class_is_made_by_its_name_in_any_case() -> None:
    halved = register(_defined())
    made = create("HALVED", learning_rate=0.5)
    assert type(made) is halved
    assert made.config()["name"] == "halved"
    assert SGD().config()["name"] == "sgd"


def test_the_same_class_defined_again_replaces_the_first_silently() -> None:
    register(_defined())
    again = _defined()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        register(again)
    assert type(create("halved")) is again


def test_another_class_of_the_name_replaces_the_first_with_a_warning() -> None:
    theirs = _defined("Sgd")
    with pytest.warns(UserWarning, match="is now") as caught:
        register(theirs)
    assert str(caught[0].message) == (
        f"optimizer 'sgd' is now {__name__}.Sgd, and was ncclkv.optimizer.sgd.SGD; rename the "
        f"class to keep both"
    )
    assert caught[0].filename == __file__
    assert type(create("sgd")) is theirs


@pytest.mark.parametrize("thing", [int, SGD(), "sgd", None])
def test_other_things_are_not_registered(thing: Any) -> None:
    with pytest.raises(UsageError, match="register takes a subclass of ncclkv.optimizer.Optimizer"):
        register(thing)


def test_an_optimizer_is_returned_as_it_is() -> None:
    sgd = SGD(learning_rate=0.5)
    assert create(sgd) is sgd
    with pytest.raises(UsageError) as caught:
        create(sgd, learning_rate=0.25, wd=0.0)
    assert str(caught.value) == (
        f"create: {sgd!r} is an optimizer already, and cannot take learning_rate, wd; assign to "
        f"its attributes, or give its name instead"
    )


def test_a_checkpoint_of_a_registered_class_loads_into_a_new_store(tmp_path: Any) -> None:
    halved = register(_defined())
    for load in False, True:
        with ncclkv.create("local") as kv:
            if load:
                kv.load(tmp_path)
            else:
                kv.init("w", np.zeros(2))
                kv.set_optimizer(halved(learning_rate=1.0, momentum=0.5))
                kv.push("w", np.ones(2))
                kv.save(tmp_path)
            kv.push("w", np.ones(2))
            assert kv.pull("w").tolist() == [-0.5 - 0.75] * 2
