"""Module on a store, against MXNet's own local store; and the store's own interface."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ncclkv
from ncclkv.errors import KeyNotInitialized, KeyTypeMismatch, NotSupported

mx = pytest.importorskip("mxnet", reason="MXNet is not installed")
import ncclkv.mxnet  # noqa: E402  # imports MXNet

nd = mx.nd


def fitted(
    kvstore: Any, devices: int = 1, epochs: int = 3, compression: Any = None, **more: Any
) -> tuple[Any, Any]:
    """Return a module that was fitted, and its weights."""
    mx.random.seed(1)
    np.random.seed(1)
    out = mx.sym.FullyConnected(mx.sym.Variable("data"), name="fc1", num_hidden=5)
    out = mx.sym.FullyConnected(mx.sym.Activation(out, act_type="relu"), name="fc2", num_hidden=3)
    out = mx.sym.SoftmaxOutput(out, name="softmax")
    numbers = np.random.default_rng(1)
    data, labels = numbers.standard_normal((32, 4)), numbers.integers(0, 3, 32)
    contexts = [mx.cpu(each) for each in range(devices)]
    module = mx.mod.Module(out, context=contexts, compression_params=compression)
    module.fit(
        mx.io.NDArrayIter(data, labels, batch_size=8),
        num_epoch=epochs,
        kvstore=kvstore,
        optimizer="sgd",
        optimizer_params={"learning_rate": 0.1, "momentum": 0.9, "wd": 0.01},
        initializer=mx.init.Xavier(),
        **more,
    )
    weights, _ = module.get_params()
    return module, {name: each.asnumpy() for name, each in weights.items()}


def same(one: Any, other: Any) -> bool:
    return one.keys() == other.keys() and all(
        np.abs(one[name] - other[name]).max() < 1e-6 for name in one
    )


@pytest.mark.parametrize("on_store", ["1", "0"])
@pytest.mark.parametrize("devices", [1, 2])
def test_fit(devices: int, on_store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _, wanted = fitted("local", devices)
    monkeypatch.setenv("MXNET_UPDATE_ON_KVSTORE", on_store)
    module, found = fitted("ncclkv", devices)
    assert isinstance(module._kvstore, ncclkv.mxnet.NCCLKV)
    assert module._update_on_kvstore == (on_store == "1")
    assert same(wanted, found)


def test_fit_with_compressed_gradients() -> None:
    compression = {"type": "2bit", "threshold": 0.1}
    _, wanted = fitted("device", 2, compression=compression)
    with ncclkv.mxnet.create("device") as kv:
        _, found = fitted(kv, 2, compression=compression)
        assert kv.gradient_compression("fc1_weight")["threshold"] == 0.1
    assert same(wanted, found)
    assert not same(wanted, fitted("device", 2)[1])


def test_a_store_as_kvstore() -> None:
    with ncclkv.mxnet.create("local") as kv:
        module, found = fitted(kv)
        assert module._kvstore is kv
        assert same(fitted("local")[1], found)


def test_states(tmp_path: Path) -> None:
    module, _ = fitted("ncclkv")
    module.save_optimizer_states(str(tmp_path / "states"))
    module.load_optimizer_states(str(tmp_path / "states"))


def test_mxnet_creates_it_by_name() -> None:
    kv = mx.kv.create("NcclKV")
    assert isinstance(kv, ncclkv.mxnet.NCCLKV)
    assert isinstance(kv, mx.kvstore.KVStoreBase)
    assert (kv.type, kv.rank, kv.num_workers) == ("dist_sync", 0, 1)
    assert kv.is_capable("optimizer")
    kv.close()


@pytest.mark.parametrize(
    ("name", "kind"), [("local", "local"), ("dist", "dist_sync"), ("dist_sync", "dist_sync")]
)
def test_module_recognises_the_type(name: str, kind: str) -> None:
    with ncclkv.mxnet.create(name) as kv:
        assert kv.type == kind


def test_all_verbs() -> None:
    """Verbs that differ from those of `ncclkv.KVStore`, and others, in MXNet's order."""
    with ncclkv.mxnet.create("local") as kv:
        kv.init([3, 5], [nd.ones((2,)), nd.ones((2,))])
        out = nd.zeros((2,))
        kv.push(3, [nd.ones((2,))] * 4, priority=-1)
        kv.pull(3, out, priority=-1, ignore_sparse=False)
        assert out.asnumpy().tolist() == [4, 4]
        kv.broadcast(7, nd.full((2,), 7), out)
        kv.broadcast(7, nd.full((2,), 8), [out, out])
        assert out.asnumpy().tolist() == [8, 8]
        value = nd.ones((2,))
        kv.pushpull(3, value)
        assert value.asnumpy().tolist() == [1, 1]
        kv._set_updater(lambda key, input, stored: stored.__iadd__(input))
        with kv.group():
            kv.pushpull([3, 5], [value, value], out=[value, out])
        assert value.asnumpy().tolist() == out.asnumpy().tolist() == [2, 2]
        kv._barrier()
        assert 5 in kv
        with pytest.raises(KeyNotInitialized):
            kv.pull(9, out)
        with pytest.raises(NotSupported, match="row_sparse_pull"):
            kv.row_sparse_pull(3, out, row_ids=nd.array([0]))
        with pytest.raises(NotSupported, match="sparse"):
            kv.init(11, nd.ones((2, 2)).tostype("row_sparse"))


def test_what_is_no_key_is_refused_by_the_store() -> None:
    with ncclkv.mxnet.create("local") as kv:
        kv.set_optimizer(mx.optimizer.SGD())
        for key in ({1: 2}, [[3]]):
            with pytest.raises(KeyTypeMismatch, match="keys are int or str"):
                kv.push(key, nd.ones((2,)))
        assert {"push", "init", "save", "group"} <= {*dir(kv)}


def test_a_store_that_cannot_be_created() -> None:
    with pytest.raises(ncclkv.errors.UsageError, match="did you mean 'local'"):
        ncclkv.mxnet.create("loacl")
