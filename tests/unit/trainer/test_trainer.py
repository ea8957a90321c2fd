"""The trainer on one rank and on threads; `tests/ranks/test_trainer.py` has it on processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ncclkv
from ncclkv.compress.registry import CODECS
from ncclkv.errors import DTypeMismatch, NotSupported, UnknownArgument, UsageError
from ncclkv.optimizer import SGD
from ncclkv.testing import run_ranks


def momentum_steps(gradients: list[float], rate: float) -> float:
    """Return a weight, first 0, after SGD of momentum 0.5 with these gradients."""
    weight = momentum = 0.0
    for gradient in gradients:
        momentum = 0.5 * momentum - rate * gradient
        weight += momentum
    return weight


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("on_store", [None, True, False])
def test_steps_use_the_sum_over_ranks(size: int, on_store: bool | None) -> None:
    def work() -> list[Any]:
        weights = {"a": np.zeros(3), "b": np.zeros((2, 2), np.float32)}
        sgd = SGD(learning_rate=0.5, momentum=0.5)
        with ncclkv.Trainer(weights, sgd, kvstore="threads", update_on_kvstore=on_store) as trainer:
            assert trainer.update_on_kvstore is (on_store is not False)
            rank = trainer.kvstore.rank
            for _ in range(2):
                for name, weight in weights.items():
                    trainer.grads[name] = np.full_like(weight, rank + 1)
                trainer.step(batch_size=2)
        return list(weights.values())

    total = size * (size + 1) / 2
    for a, b in run_ranks(size, work):
        np.testing.assert_array_equal(a, momentum_steps([total / 2] * 2, 0.5))
        np.testing.assert_array_equal(b, momentum_steps([total / 2] * 2, 0.5))


@pytest.mark.parametrize("on_store", [True, False])
def test_all_ranks_take_the_values_of_rank_0(on_store: bool) -> None:
    def work() -> float:
        with ncclkv.create("threads") as kv:
            weights = {"a": np.full(2, 7.0 + kv.rank)}
            ncclkv.Trainer(weights, "sgd", kvstore=kv, update_on_kvstore=on_store)
            return float(weights["a"].sum())

    assert run_ranks(2, work) == [14.0, 14.0]


def test_sums_can_be_changed_before_the_update() -> None:
    def work() -> tuple[float, float]:
        weight, gradient = np.zeros(2), np.ones(2)
        params = [("w", weight, gradient)]
        with ncclkv.Trainer(
            params, "sgd", {"learning_rate": 1.0}, "threads", update_on_kvstore=False
        ) as trainer:
            trainer.allreduce_grads()
            total = float(gradient[0])
            np.clip(gradient, -1, 1, out=gradient)
            trainer.update(batch_size=4)
        return total, float(weight[0])

    assert run_ranks(3, work) == [(3.0, -0.25)] * 3


def test_a_changed_learning_rate_takes_effect_at_the_next_step() -> None:
    weight = np.zeros(1)
    trainer = ncclkv.Trainer([("w", weight, np.ones(1))], "sgd", {"learning_rate": 0.5}, "local")
    trainer.step(1)
    assert trainer.learning_rate == 0.5
    with pytest.raises(AttributeError, match=r"call set_learning_rate\(0.125\)"):
        trainer.learning_rate = 0.125
    trainer.set_learning_rate(0.25)
    trainer.step(1)
    assert weight[0] == -0.75


def test_the_optimizers_own_factor_is_kept() -> None:
    weight = np.zeros(1)
    sgd = SGD(learning_rate=1.0, rescale_grad=0.5)
    trainer = ncclkv.Trainer([("w", weight, np.ones(1))], sgd, kvstore=None)
    trainer.step(2)
    trainer.step(4)
    assert weight[0] == -(0.25 + 0.125)


@pytest.mark.parametrize(
    ("kvstore", "wanted", "has_store", "on_store"),
    [
        (None, None, False, False),
        (None, False, False, False),
        ("local", None, False, False),
        ("Device", None, False, False),
        ("local", False, False, False),
        ("local", True, True, True),
        ("threads", None, True, True),
        ("threads", True, True, True),
        ("threads", False, True, False),
    ],
)
def test_the_table_of_decisions(
    kvstore: str | None, wanted: bool | None, has_store: bool, on_store: bool
) -> None:
    with ncclkv.Trainer(
        {"a": np.zeros(1)}, "sgd", kvstore=kvstore, update_on_kvstore=wanted
    ) as trainer:
        assert (trainer.kvstore is not None) is has_store
        assert trainer.update_on_kvstore is on_store


@pytest.mark.parametrize("text", ["", "0", "1", "2"])
def test_the_environment_decides_where_no_argument_does(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MXNET_UPDATE_ON_KVSTORE", text)
    cases: list[tuple[Any, bool | None, bool]] = [
        ("threads", None, text != "0"),
        ("threads", True, True),
        ("threads", False, False),
        ("local", None, False),
        (Sums(), None, False),
        (None, None, False),
    ]
    for kvstore, wanted, on_store in cases:
        with ncclkv.Trainer(
            {"a": np.zeros(1)}, "sgd", kvstore=kvstore, update_on_kvstore=wanted
        ) as trainer:
            assert trainer.update_on_kvstore is on_store


class Sums(ncclkv.KVStoreBase):
    """Store of another package, which runs no optimizer."""

    type, rank, num_workers = "sums", 0, 1

    @staticmethod
    def is_capable(capability: str) -> bool:
        return False

    def broadcast(self, key: Any, value: Any, out: Any, priority: int = 0) -> None:
        pass

    def pushpull(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> None:
        for array in value:
            array *= 2


def test_a_store_that_runs_no_optimizer_only_sums() -> None:
    weight = np.zeros(1)
    params = [("w", weight, np.ones(1))]
    trainer = ncclkv.Trainer(params, "sgd", {"learning_rate": 1.0}, Sums())
    assert trainer.update_on_kvstore is False
    trainer.step(1)
    assert weight[0] == -2
    with pytest.raises(UsageError, match=r"the store 'sums' runs no optimizer; give another kvsto"):
        ncclkv.Trainer(params, "sgd", kvstore=Sums(), update_on_kvstore=True)


def test_a_given_store_stays_open() -> None:
    with ncclkv.create("local") as kv:
        with ncclkv.Trainer({"a": np.zeros(1)}, "sgd", kvstore=kv) as trainer:
            assert trainer.update_on_kvstore
        assert "a" in kv
        kv.wait()


@pytest.mark.parametrize("on_store", [True, False])
def test_a_second_trainer_needs_a_store_of_its_own(on_store: bool) -> None:
    with ncclkv.create("local") as kv:
        weight = np.zeros(1)
        first = [("a", weight, np.ones(1))]
        trainer = ncclkv.Trainer(first, "sgd", {"learning_rate": 0.5}, kv, None, on_store)
        with pytest.raises(UsageError, match=r"the store already has the keys 'a', .*of its own"):
            ncclkv.Trainer({"b": np.zeros(1)}, "sgd", {"learning_rate": 0.125}, kv)
        trainer.step(1)
        assert weight[0] == -0.5


def test_a_store_with_an_optimizer_is_refused() -> None:
    with ncclkv.create("local") as kv:
        assert kv.optimizer is None
        kv.set_optimizer(sgd := SGD())
        with pytest.raises(UsageError, match=r"the store already has an optimizer, perhaps of an"):
            ncclkv.Trainer({"b": np.zeros(1)}, "sgd", kvstore=kv)
        assert kv.optimizer is sgd


def test_a_parameter_without_a_gradient_can_be_left_out() -> None:
    weights = {"a": np.zeros(1), "b": np.zeros(1)}
    with ncclkv.create("local", missing="zeros") as kv:
        trainer = ncclkv.Trainer(weights, "sgd", {"learning_rate": 1.0}, kv)
        trainer.grads["a"] = np.ones(1)
        with pytest.raises(UsageError, match=r"parameter 'b' has no gradient \(1 of 2 have none\)"):
            trainer.step(1)
        trainer.step(1, ignore_stale_grad=True)
        # A gradient is used once.
        with pytest.raises(UsageError, match=r"parameter 'a' has no gradient \(2 of 2"):
            trainer.step(1)
    assert (weights["a"][0], weights["b"][0]) == (-1, 0)


@pytest.mark.parametrize("verb", ["allreduce_grads", "update"])
def test_sums_on_the_store_cannot_be_reached(verb: str) -> None:
    with ncclkv.create("local") as kv:
        trainer = ncclkv.Trainer({"a": np.zeros(1)}, "sgd", kvstore=kv)
        with pytest.raises(UsageError, match=rf"{verb}: the optimizer runs on the store"):
            getattr(trainer, verb)(*((1,) if verb == "update" else ()))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"optimizer": "sdg"}, r"optimizer 'sdg' is unknown; did you mean 'sgd'"),
        (
            {"optimizer": SGD(), "optimizer_params": {"wd": 1.0}},
            r"optimizer_params=\{'wd': 1.0\} was given with the optimizer SGD",
        ),
        ({"kvstore": "dits"}, r"store 'dits' is unknown; did you mean 'dist'"),
        (
            {"kvstore": None, "update_on_kvstore": True},
            r"update_on_kvstore=True, but kvstore is",
        ),
        ({"update_on_kvstore": "yes"}, r"update_on_kvstore='yes' is not a bool"),
        ({"kvstores": "dist"}, r"Trainer has no argument 'kvstores'; did you mean 'kvstore'"),
    ],
)
def test_wrong_arguments_are_named(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        ncclkv.Trainer(**{"params": {"a": np.zeros(1)}, "optimizer": "sgd", **arguments})


@pytest.mark.parametrize("size", [0, -1, float("nan"), "two"])
def test_a_wrong_batch_size_is_refused(size: Any) -> None:
    trainer = ncclkv.Trainer([("a", np.zeros(1), np.ones(1))], "sgd", kvstore=None)
    with pytest.raises(UsageError, match=r"batch_size is "):
        trainer.step(size)


@pytest.mark.parametrize("on_store", [True, False])
def test_gradients_are_compressed(on_store: bool) -> None:
    compression = {"type": "2bit", "threshold": 0.5}

    def work() -> list[float]:
        weights = {"w": np.full(3, 0.3, np.float32), "double": np.zeros(1)}
        with ncclkv.Trainer(
            weights, "sgd", {"learning_rate": 1.0}, "threads", compression, on_store
        ) as trainer:
            kv = trainer.kvstore
            assert kv.gradient_compression("w")["threshold"] == 0.5
            assert kv.gradient_compression("double") is None
            np.testing.assert_array_equal(weights["w"], np.float32(0.3))  # values are sent whole
            for _ in range(2):
                gradient = np.array([0.25, 2.0, -0.75], np.float32) * (kv.rank + 1)
                trainer.grads.update(w=gradient, double=np.ones(1))
                trainer.step(1)
        return [*weights["w"].tolist(), *weights["double"].tolist()]

    # Steps of both ranks: 0 and 0.5, 0.5 and 0.5; then always the threshold.
    expected = [0.3 - 1.5, 0.3 - 2.0, 0.3 + 2.0, -4.0]
    for found in run_ranks(2, work):
        assert found == pytest.approx(expected, rel=1e-6)


WRONG_COMPRESSION: dict[str, tuple[Any, type[Exception], str]] = {
    "str": ("2bit", UsageError, "compression_params='2bit' is not a dict; give one such as"),
    "type": ({"type": "3bit"}, UsageError, "compression_params: type '3bit' is unknown"),
    "name": ({"type": "2bit", "treshold": 1}, UnknownArgument, "did you mean 'threshold'"),
}


@pytest.mark.parametrize("kvstore", ["threads", "local", None])
@pytest.mark.parametrize("name", WRONG_COMPRESSION)
def test_wrong_compression_is_refused_on_any_store(name: str, kvstore: Any) -> None:
    given, error, text = WRONG_COMPRESSION[name]
    with pytest.raises(error, match=text):
        ncclkv.Trainer({"a": np.zeros(1, np.float32)}, "sgd", None, kvstore, given)


def test_compression_of_no_parameter_is_refused() -> None:
    words = (
        "compression_params={'type': '2bit'} compresses no parameter, because their dtypes are "
        "float64; train in float32, or leave"
    )
    with pytest.raises(DTypeMismatch, match=words):
        ncclkv.Trainer({"a": np.zeros(1)}, "sgd", None, "threads", {"type": "2bit"})
    ncclkv.Trainer({"a": np.zeros(1)}, "sgd", None, "threads", {"type": "fp16"}).close()


def test_a_store_that_refuses_a_compression_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CODECS["topk"], "most_senders", 1)

    def work() -> None:
        parameters = {"a": np.zeros(1, np.float32)}
        with pytest.raises(NotSupported, match="topk sums the codes of at most 1 senders"):
            ncclkv.Trainer(parameters, "sgd", None, "threads", {"type": "topk"})
        ncclkv.Trainer(parameters, "sgd", None, "threads", {"type": "fp16"}).close()

    run_ranks(2, work)


def test_no_store_compresses_nothing() -> None:
    weight = np.zeros(1, np.float32)
    trainer = ncclkv.Trainer({"a": weight}, "sgd", {"learning_rate": 1}, None, {"type": "1bit"})
    trainer.grads["a"] = np.full(1, 0.25, np.float32)
    trainer.step(1)
    assert weight.tolist() == [-0.25]


@pytest.mark.parametrize("on_store", [True, False])
def test_states_continue_as_if_not_interrupted(on_store: bool, tmp_path: Path) -> None:
    def trainer_of(weight: Any) -> ncclkv.Trainer:
        sgd = SGD(learning_rate=0.5, momentum=0.5)
        return ncclkv.Trainer({"w": weight}, sgd, kvstore="threads", update_on_kvstore=on_store)

    def step(trainer: ncclkv.Trainer) -> None:
        trainer.grads["w"] = np.ones(2)
        trainer.step(1)

    def work() -> tuple[Any, Any]:
        whole, resumed = np.zeros(2), np.zeros(2)
        with trainer_of(whole) as trainer:
            step(trainer)
            step(trainer)
        with trainer_of(resumed) as trainer:
            step(trainer)
            trainer.save_states(tmp_path)
        with trainer_of(resumed) as trainer:
            trainer.load_states(tmp_path)
            step(trainer)
        return whole, resumed

    for whole, resumed in run_ranks(2, work):
        np.testing.assert_array_equal(whole, resumed)


@pytest.mark.parametrize("loads", ["all ranks", "rank 0"])
@pytest.mark.parametrize("on_store", [True, False])
def test_parameters_are_loaded_after_the_trainer_and_before_its_states(
    on_store: bool, loads: str, tmp_path: Path
) -> None:
    """MXNet's order of a resume: Trainer, load_parameters, load_states."""

    def trainer_of(weight: Any, kv: Any) -> ncclkv.Trainer:
        sgd, params = SGD(learning_rate=0.5, momentum=0.5), [("w", weight, np.ones(2))]
        return ncclkv.Trainer(params, sgd, kvstore=kv, update_on_kvstore=on_store)

    def work() -> list[float]:
        weight, resumed = np.zeros(2), np.full(2, 9.0)
        with ncclkv.create("threads") as kv:
            trainer = trainer_of(weight, kv)
            trainer.step(2)
            trainer.save_states(tmp_path)
        with ncclkv.create("threads") as kv:
            trainer = trainer_of(resumed, kv)
            if loads == "all ranks" or kv.rank == 0:
                resumed[:] = weight
            trainer.load_states(tmp_path)
            trainer.step(2)
        return [float(weight[0]), *resumed.tolist()]

    step = momentum_steps([1.0], 0.5), *[momentum_steps([1.0, 1.0], 0.5)] * 2
    assert run_ranks(2, work) == [list(step)] * 2


def test_parameters_loaded_before_the_first_step_are_trained() -> None:
    def work() -> float:
        weight = np.full(2, 5.0)
        with ncclkv.Trainer([("w", weight, np.ones(2))], "sgd", {"learning_rate": 0.5}) as trainer:
            weight[:] = 1
            trainer.step(trainer.kvstore.num_workers)
        return float(weight[0])

    assert work() == 0.5


def test_a_checkpoint_loaded_into_the_store_stays(tmp_path: Path) -> None:
    for resume in (False, True):
        weight = np.zeros(1)
        with ncclkv.create("local") as kv:
            sgd, params = SGD(learning_rate=0.5, momentum=0.5), [("w", weight, np.ones(1))]
            trainer = ncclkv.Trainer(params, sgd, kvstore=kv)
            if resume:
                kv.load(tmp_path)
                kv.pull("w", out=weight)
            trainer.step(1)
            kv.save(tmp_path, step=1)
    assert weight[0] == momentum_steps([1.0, 1.0], 0.5)


@pytest.mark.parametrize("changed", [False, True])
def test_a_first_step_in_a_block_takes_no_loaded_values(changed: bool) -> None:
    weight = np.full(1, 5.0)
    with ncclkv.create("local") as kv:
        trainer = ncclkv.Trainer([("w", weight, np.ones(1))], "sgd", {"learning_rate": 0.5}, kv)
        weight += changed
        with kv.uneven():
            if changed:
                with pytest.raises(UsageError, match=r"in a block, and parameter 'w' was changed"):
                    trainer.step(1)
            else:
                trainer.step(1)
    assert weight[0] == (6 if changed else 4.5)


@pytest.mark.parametrize("update_on", ["every_rank", "root", "sharded"])
def test_a_changed_parameter_is_refused_until_the_store_takes_it(update_on: Any) -> None:
    def work() -> list[float]:
        weight, untouched = np.full(4, 5.0), np.full(3, np.nan)
        with ncclkv.create("threads", update_on=update_on) as kv:
            sgd = SGD(learning_rate=0.5, momentum=0.5)
            params = [("w", weight, np.ones(4)), ("n", untouched, np.ones(3))]
            trainer = ncclkv.Trainer(params, sgd, kvstore=kv)
            trainer.step(2)
            weight[-1] = 1
            with pytest.raises(UsageError, match=r"was changed.*reset_values.*_on_kvstore=F"):
                trainer.step(2)
            weight[:] = 1 if kv.rank == 0 else 2
            trainer.reset_values()
            trainer.step(2)
            trainer.step(2)
        return weight.tolist()

    # The momentum of the first step stays.
    steps = momentum_steps([1.0, 1.0, 1.0], 0.5) - momentum_steps([1.0], 0.5)
    assert run_ranks(2, work) == [[1 + steps] * 4] * 2


@pytest.mark.parametrize("change", ["data", "no_grad", "replaced", "view"])
def test_a_changed_tensor_is_refused(change: str) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    weight = torch.nn.Parameter(torch.full((2, 3), 5.0))
    with ncclkv.create("local") as kv:
        trainer = ncclkv.Trainer([("w", weight)], "sgd", {"learning_rate": 0.5}, kv)
        for step in range(3):
            if step == 1 and change == "data":
                weight.data.clamp_(-1, 1)
            elif step == 1 and change == "no_grad":
                with torch.no_grad():
                    weight.clamp_(-1, 1)
            elif step == 1 and change == "replaced":
                weight.data = torch.ones(2, 3)
            elif step == 1:
                weight.detach().numpy()[0, 0] = 1
            weight.grad = torch.ones(2, 3)
            if step == 1:
                with pytest.raises(UsageError, match=r"parameter 'w' was changed"):
                    trainer.step(1)
                trainer.reset_values()
            trainer.step(1)
    assert weight[0, 0].item() == 0


def test_a_value_pulled_by_the_program_is_no_change() -> None:
    weight = np.zeros((2, 2)).T
    with ncclkv.create("local") as kv:
        trainer = ncclkv.Trainer([("w", weight, np.ones((2, 2)))], "sgd", {}, kv)
        trainer.step(1)
        kv.reset("w", np.ones((2, 2)))
        with pytest.raises(UsageError, match=r"after a load into the store: pull the parameters"):
            trainer.step(1)
        kv.pull("w", out=weight)
        trainer.step(1)
    assert weight[0, 0] == 0.99


@pytest.mark.parametrize("kvstore", [None, "threads"])
def test_values_updated_on_each_rank_may_change(kvstore: str | None) -> None:
    weight = np.zeros(1)
    params = [("w", weight, np.ones(1))]
    with ncclkv.Trainer(
        params, "sgd", {"learning_rate": 1.0}, kvstore, update_on_kvstore=False
    ) as trainer:
        for value in (3, 5):
            weight[:] = value
            trainer.step(1)
            assert weight[0] == value - 1
        trainer.reset_values()
    assert weight[0] == 4


@pytest.mark.parametrize("on_store", [True, False])
def test_a_torch_module_is_trained_as_torch_does(on_store: bool) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    inputs = torch.linspace(-1, 1, 12, dtype=torch.float64).reshape(6, 2)

    def made() -> Any:
        torch.manual_seed(1)
        layers = torch.nn.Linear(2, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1)
        return torch.nn.Sequential(*layers).double()

    expected, trained = made(), made()
    torch_sgd = torch.optim.SGD(expected.parameters(), lr=0.1)
    with ncclkv.Trainer(
        trained, "sgd", {"learning_rate": 0.1}, "threads", update_on_kvstore=on_store
    ) as trainer:
        for _ in range(5):
            for module in (expected, trained):
                module.zero_grad()
                module(inputs).square().sum().backward()
            torch_sgd.step()
            trainer.step(1)
    for wanted, got in zip(expected.parameters(), trained.parameters(), strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-13, atol=1e-13)
