"""Gluon's Trainer on a store, against MXNet's own local store."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ncclkv
from ncclkv.errors import UsageError

mx = pytest.importorskip("mxnet", reason="MXNet is not installed")
import ncclkv.mxnet  # noqa: E402  # imports MXNet

nn = mx.gluon.nn
DEVICES = [mx.cpu(0), mx.cpu(1)]


def network(prefix: str, devices: Any = None) -> Any:
    """Return a network with equal weights in each call."""
    mx.random.seed(1)
    np.random.seed(1)
    net = nn.HybridSequential(prefix=prefix)
    with net.name_scope():
        net.add(nn.Conv2D(4, 3, in_channels=2), nn.BatchNorm(), nn.Dense(3))
    net.initialize(mx.init.Xavier(), ctx=devices or mx.cpu())
    net.hybridize()
    return net


def train(net: Any, trainer: Any, devices: Any, steps: int = 12) -> list[np.ndarray]:
    """Train, and evaluate in between, as programs do; return the weights."""
    for step in range(steps):
        numbers = np.random.default_rng(step)
        data = mx.nd.array(numbers.standard_normal((8, 2, 6, 6)))
        labels = mx.nd.array(numbers.integers(0, 3, 8))
        parts = mx.gluon.utils.split_and_load(data, devices)
        loss = mx.gluon.loss.SoftmaxCrossEntropyLoss()
        with mx.autograd.record():
            losses = [
                loss(net(part), label)
                for part, label in zip(
                    parts, mx.gluon.utils.split_and_load(labels, devices), strict=True
                )
            ]
        mx.autograd.backward(losses)
        trainer.step(8)
        net(parts[0])  # in inference oneDNN lays weights out anew
    return [each.data(devices[0]).asnumpy() for each in net.collect_params().values()]


ADAM = {"learning_rate": 0.01, "wd": 0.01}


def trained(kvstore: Any, devices: Any, **options: Any) -> list[np.ndarray]:
    net = network("net_", devices)
    net(mx.nd.ones((1, 2, 6, 6), ctx=devices[0]))
    net.collect_params(".*bias").setattr("lr_mult", 2.0)
    arguments = {**ADAM, "lr_scheduler": mx.lr_scheduler.FactorScheduler(4, 0.5, base_lr=0.01)}
    trainer = mx.gluon.Trainer(net.collect_params(), "adam", arguments, kvstore=kvstore, **options)
    return train(net, trainer, devices)


def differences(one: list[np.ndarray], other: list[np.ndarray]) -> float:
    return max(float(np.abs(a - b).max()) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("options", [{}, {"update_on_kvstore": False}])
@pytest.mark.parametrize("devices", [DEVICES[:1], DEVICES], ids=["one", "two"])
def test_weights_are_those_of_mxnets_store(devices: Any, options: dict[str, Any]) -> None:
    wanted = trained("local", devices)
    assert differences(wanted, trained("ncclkv", devices, **options)) < 1e-6


def test_the_name_makes_a_store_for_one_device_too() -> None:
    net = network("net_")
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", kvstore="NCCLKV")
    train(net, trainer, DEVICES[:1], 1)
    assert isinstance(trainer._kvstore, ncclkv.mxnet.NCCLKV)
    assert trainer._kvstore.keys() == list(range(len(trainer._params)))


def test_a_store_with_options() -> None:
    with ncclkv.mxnet.create("local", update_on="sharded", timeout=5) as kv:
        wanted = trained("local", DEVICES)
        assert differences(wanted, trained(kv, DEVICES)) < 1e-6
        assert "update on" in repr(kv)


def test_states_are_saved_and_loaded(tmp_path: Path) -> None:
    """Training continues as if it had not been interrupted."""
    path = str(tmp_path / "states")

    def trainer_of(net: Any) -> Any:
        return mx.gluon.Trainer(net.collect_params(), "adam", dict(ADAM), kvstore="ncclkv")

    net = network("net_")
    trainer = trainer_of(net)
    train(net, trainer, DEVICES[:1], 5)
    trainer.set_learning_rate(0.02)
    train(net, trainer, DEVICES[:1], 5)
    trainer.save_states(path)
    net.save_parameters(str(tmp_path / "weights"))
    wanted = train(net, trainer, DEVICES[:1], 5)

    net = network("net_")
    net.load_parameters(str(tmp_path / "weights"))
    trainer = trainer_of(net)
    trainer.load_states(path)
    assert trainer.learning_rate == 0.02
    assert differences(wanted, train(net, trainer, DEVICES[:1], 5)) < 1e-6


def test_changes_between_steps_are_followed() -> None:
    weights = []
    for kvstore in ("device", "ncclkv"):
        net = network("net_", DEVICES)
        trainer = mx.gluon.Trainer(net.collect_params(), "sgd", dict(ADAM), kvstore=kvstore)
        train(net, trainer, DEVICES, 3)
        trainer.set_learning_rate(0.1)
        net.collect_params(".*bias").setattr("lr_mult", 0.5)
        net.collect_params(".*gamma").setattr("wd_mult", 0.0)
        weights.append(train(net, trainer, DEVICES, 3))
    assert differences(*weights) < 1e-6


def test_a_store_of_ncclkv_as_it_is() -> None:
    with ncclkv.create("local") as kv:
        wanted = trained("local", DEVICES[:1])
        assert differences(wanted, trained(kv, DEVICES[:1])) < 1e-6
        assert kv.keys()


def test_a_store_for_each_of_several_ranks_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PMI_SIZE", "4")  # as MPICH's mpirun does
    monkeypatch.setenv("PMI_RANK", "0")
    net = network("net_")
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", dict(ADAM))
    with warnings.catch_warnings(record=True) as warned:  # of MXNet, too
        warnings.simplefilter("always")
        train(net, trainer, DEVICES[:1], 1)
    assert [
        (str(each.message), each.filename) for each in warned if each.category is UserWarning
    ] == [
        (
            "kvstore='device' in each of 4 ranks trains 4 independent models; kvstore='ncclkv' "
            "trains one",
            __file__,
        )
    ]


@pytest.mark.parametrize("given", [lambda net: net, lambda net: net.collect_params(), dict])
def test_the_trainer_of_ncclkv_names_that_of_gluon(given: Any) -> None:
    net = network("net_")
    params = given(net) if given is not dict else dict(net.collect_params().items())
    with pytest.raises(UsageError) as raised:
        ncclkv.Trainer(params, "sgd", kvstore="local")
    assert str(raised.value).startswith("params: MXNet's ")
    assert str(raised.value).endswith(
        " is for Gluon's own trainer; after `import ncclkv.mxnet` make "
        "mxnet.gluon.Trainer(params, ..., kvstore='ncclkv')"
    )


def test_ranks_that_are_threads() -> None:
    """A notebook trains on several ranks."""

    def work() -> tuple[str, list[float]]:
        with ncclkv.mxnet.create("threads") as kv:
            net = nn.Dense(1, in_units=2, prefix=f"net{kv.rank}_")
            net.initialize(mx.init.Zero())
            trainer = mx.gluon.Trainer(net.collect_params(), "sgd", dict(ADAM), kvstore=kv)
            with mx.autograd.record():
                loss = net(mx.nd.full((1, 2), kv.rank + 1)).sum()
            loss.backward()
            trainer.step(1)
            return kv.type, net.weight.data().asnumpy().ravel().tolist()

    found = ncclkv.testing.run_ranks(3, work)
    assert found == [("dist_sync", pytest.approx([-0.06, -0.06]))] * 3


def test_sparse_weights_are_refused() -> None:
    net = nn.Embedding(5, 2, sparse_grad=True)
    net.initialize()
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", kvstore="ncclkv")
    with mx.autograd.record():
        loss = net(mx.nd.array([1, 2])).sum()
    loss.backward()
    with pytest.raises(ValueError, match="NCCLKV.*for multi-device training with sparse gradients"):
        trainer.step(1)


TWO_BIT = {"type": "2bit", "threshold": 0.02}


@pytest.mark.parametrize("update_on_kvstore", [True, False])
def test_compressed_gradients_are_those_of_mxnet(update_on_kvstore: bool) -> None:
    """Each context's gradient has a residual of its own, in MXNet's store and in ours."""
    options = {"compression_params": TWO_BIT, "update_on_kvstore": update_on_kvstore}
    theirs = trained("device", DEVICES, **options)
    with ncclkv.mxnet.create("device") as kv:
        ours = trained(kv, DEVICES, **options)
        assert kv.gradient_compression(0)["threshold"] == 0.02
    plain = trained("device", DEVICES, update_on_kvstore=update_on_kvstore)
    for got, expected in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-6)
    assert not np.allclose(ours[0], plain[0], rtol=1e-3)


def test_a_wrong_compression_is_refused_at_the_first_step() -> None:
    net = network("net_")
    net(mx.nd.ones((1, 2, 6, 6)))
    trainer = mx.gluon.Trainer(
        net.collect_params(), "sgd", kvstore="ncclkv", compression_params={"type": "3bit"}
    )
    with pytest.raises(UsageError, match="compression_params: type '3bit' is unknown"):
        trainer.step(1)
