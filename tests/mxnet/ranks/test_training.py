"""Training on several ranks, against MXNet's own local store with the arrays of all ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from tests.mxnet.training import SHAPES, difference, named, trained

mx = pytest.importorskip("mxnet", reason="MXNet is not installed")
import ncclkv.mxnet  # noqa: E402  # imports MXNet

# Each rank trains the models of the comparison alone.
pytestmark = pytest.mark.filterwarnings("ignore:kvstore='local' in each of:UserWarning")
RANK, SIZE = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
BATCH = 8
lr = mx.lr_scheduler

ARGUMENTS: dict[str, dict[str, Any]] = {
    "sgd": {"momentum": 0.9, "clip_gradient": 2.0},
    "adam": {"clip_gradient": 2.0},
}


def optimizer(name: str) -> Any:
    schedule = lr.CosineScheduler(60, base_lr=0.05, warmup_steps=5)
    made = named(name, **ARGUMENTS[name])
    made.lr_scheduler = schedule
    return made


@pytest.mark.parametrize("update_on", ["every_rank", "root", "sharded"])
@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_weights_are_those_of_mxnets_local_store(name: str, update_on: str) -> None:
    local = mx.kv.create("local")
    local.set_optimizer(optimizer(name))
    wanted = trained(local, [*SHAPES], range(SIZE))
    with ncclkv.mxnet.create("dist_sync", update_on=update_on, timeout=30) as kv:
        kv.set_optimizer(optimizer(name))
        assert difference(wanted, trained(kv, [*SHAPES], [RANK])) < 1e-6


def test_mxnets_own_optimizer() -> None:
    local = mx.kv.create("local")
    local.set_optimizer(named("dcasgd"))
    wanted = trained(local, [*SHAPES], range(SIZE))
    with ncclkv.mxnet.create("dist_sync", timeout=30) as kv:
        kv.set_updater(mx.optimizer.get_updater(named("dcasgd")))
        assert difference(wanted, trained(kv, [*SHAPES], [RANK])) < 1e-6


def batch(step: int) -> tuple[np.ndarray, np.ndarray]:
    numbers = np.random.default_rng(step)
    return numbers.standard_normal((BATCH, 4)), numbers.integers(0, 3, BATCH)


def gluon(kvstore: Any, parts: list[int], **options: Any) -> list[np.ndarray]:
    """Train on some parts of each batch, one part for each device."""
    devices = [mx.cpu(each) for each in range(len(parts))]
    # On all ranks: Gluon broadcasts the weights in its first step, after the first gradients.
    mx.random.seed(1)
    net = mx.gluon.nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(mx.gluon.nn.Dense(5, activation="tanh"), mx.gluon.nn.Dense(3))
    net.initialize(mx.init.Xavier(), ctx=devices)
    net.collect_params(".*bias").setattr("lr_mult", 2.0)
    schedule = lr.FactorScheduler(4, 0.5, base_lr=0.1)
    arguments = {"learning_rate": 0.1, "momentum": 0.9, "lr_scheduler": schedule}
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", arguments, kvstore, **options)
    loss = mx.gluon.loss.SoftmaxCrossEntropyLoss()
    for step in range(12):
        data, labels = (np.split(each, SIZE) for each in batch(step))
        with mx.autograd.record():
            losses = [
                loss(net(mx.nd.array(data[part], ctx=device)), mx.nd.array(labels[part], device))
                for part, device in zip(parts, devices, strict=True)
            ]
        mx.autograd.backward(losses)
        trainer.step(BATCH)
    return [each.data(devices[0]).asnumpy() for each in net.collect_params().values()]


def test_gluon() -> None:
    wanted = gluon("local", [*range(SIZE)])
    assert difference(wanted, gluon("ncclkv", [RANK])) < 1e-6


COMPRESSION = {"type": "2bit", "threshold": 0.1}


@pytest.mark.skipif(SIZE == 1, reason="MXNet compresses nothing on one device")
@pytest.mark.filterwarnings("ignore:kvstore='device' in each of:UserWarning")
def test_gluon_compresses_as_mxnet() -> None:
    """A rank keeps a residual here, and a device in MXNet's store of one process."""
    wanted = gluon("device", [*range(SIZE)], compression_params=COMPRESSION)
    assert difference(wanted, gluon("ncclkv", [RANK], compression_params=COMPRESSION)) < 1e-5
    assert difference(wanted, gluon("local", [*range(SIZE)])) > 1e-3


def module(kvstore: Any, parts: list[int]) -> list[np.ndarray]:
    """Fit a module to some parts of each batch, one part for each device."""
    mx.random.seed(1 if 0 in parts else 2)  # Module broadcasts rank 0's before
    out = mx.sym.FullyConnected(mx.sym.Variable("data"), name="fc1", num_hidden=5)
    out = mx.sym.FullyConnected(mx.sym.Activation(out, act_type="tanh"), name="fc2", num_hidden=3)
    out = mx.sym.SoftmaxOutput(out, name="softmax")
    batches = [[np.split(each, SIZE) for each in batch(step)] for step in range(4)]
    data, labels = (
        np.concatenate([found[kind][part] for found in batches for part in parts])
        for kind in (0, 1)
    )
    made = mx.mod.Module(out, context=[mx.cpu(each) for each in range(len(parts))])
    made.fit(
        mx.io.NDArrayIter(data, labels, batch_size=BATCH // SIZE * len(parts)),
        num_epoch=3,
        kvstore=kvstore,
        optimizer="adam",
        optimizer_params={"learning_rate": 0.01, "wd": 0.01},
        initializer=mx.init.Xavier(),
    )
    return [each.asnumpy() for each in made.get_params()[0].values()]


def test_module() -> None:
    wanted = module("local", [*range(SIZE)])
    assert difference(wanted, module("ncclkv", [RANK])) < 1e-6
