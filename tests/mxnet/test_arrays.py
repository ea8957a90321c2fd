"""NDArrays as values and outs of any store."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import ncclkv
from ncclkv.arrays import as_out, as_value, mxnet
from ncclkv.errors import DTypeMismatch, NotSupported, ShapeMismatch, UsageError

mx = pytest.importorskip("mxnet", reason="MXNet is not installed")
nd = mx.nd
WHAT = "push of key 3"
BFLOAT16 = np.dtype([("bfloat16", np.uint16)])

DTYPES = ["bool", "uint8", "int8", "int32", "int64", "float16", "float32", "float64"]


@pytest.fixture
def kv() -> Iterator[ncclkv.KVStore]:
    with ncclkv.create("local") as store:
        yield store


@pytest.mark.parametrize("name", DTYPES)
def test_values_and_outs_are_views(name: str) -> None:
    array = nd.ones((3,), dtype=name)
    view = as_value(array, WHAT)
    assert type(view) is np.ndarray
    assert view.dtype == np.dtype(name)
    assert not view.flags.writeable
    as_out(array, WHAT)[1] = 0
    assert view.tolist() == array.asnumpy().tolist() == [1, 0, 1]


def test_bfloat16() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    array = nd.amp_cast(nd.array([1.5, -2.0]), dtype=BFLOAT16)
    view = as_out(array, WHAT)
    assert view.dtype == np.dtype(ml_dtypes.bfloat16)
    assert view.tolist() == [1.5, -2.0]


@pytest.mark.parametrize("shape", [(), (0, 3), (1,), (2, 3, 4)])
def test_any_shape(shape: tuple[int, ...]) -> None:
    with mx.util.np_shape(True):
        array = nd.ones(shape)
        assert as_value(array, WHAT).shape == shape
        assert as_out(array, WHAT).sum() == array.size


def test_slices_and_arrays_of_the_numpy_interface_are_views() -> None:
    whole = nd.arange(12).reshape((4, 3))
    as_out(whole[1:3], WHAT)[...] = -1
    assert whole.asnumpy().sum(axis=1).tolist() == [3, -3, -3, 30]
    array = mx.np.ones((2,))
    as_out(array, WHAT)[...] = 5
    assert array.tolist() == [5, 5]


def test_a_view_keeps_its_array() -> None:
    array = nd.ones((3,))
    before = sys.getrefcount(array)
    view = as_value(array, WHAT)
    assert sys.getrefcount(array) == before + 1
    assert view.tolist() == [1, 1, 1]


def test_work_that_has_begun_is_complete() -> None:
    """A read sees earlier writes of MXNet's engine, and a write spares earlier reads."""
    for _ in range(5):
        array = nd.ones((400, 400))
        for _ in range(10):
            array = nd.dot(array, array) / 400
        assert (as_value(array, WHAT) == 1).all()
        product = array
        for _ in range(10):
            product = nd.dot(array, product) / 400
        as_out(array, WHAT)[...] = 0
        assert (product.asnumpy() == 1).all()


def blocked() -> tuple[Any, Any]:
    """Return weights that oneDNN has laid out for a convolution, and their values."""
    if not mx.runtime.Features().is_enabled("MKLDNN"):
        pytest.skip("this MXNet has no oneDNN")
    net = mx.gluon.nn.Conv2D(32, 3, in_channels=3)
    net.initialize()
    weights = net.weight.data()
    values = weights.asnumpy()
    net(nd.ones((2, 3, 8, 8))).wait_to_read()
    with pytest.raises(mx.MXNetError, match="MKLDNN"):
        weights.to_dlpack_for_read()
    return weights, values


def test_weights_in_the_layout_of_onednn() -> None:
    weights, values = blocked()
    assert np.array_equal(as_value(weights, WHAT), values)
    weights, values = blocked()
    as_out(weights, WHAT)[...] = 2 * values
    assert np.array_equal(weights.asnumpy(), 2 * values)


def test_all_verbs_take_them(kv: ncclkv.KVStore) -> None:
    kv.init(["a", "b"], [nd.zeros((2,)), nd.ones((2, 2))])
    kv.push("a", [nd.ones((2,)), 2 * nd.ones((2,))])
    outs = [nd.zeros((2,)), nd.zeros((2,), dtype="float16")]
    kv.pull("a", out=outs)
    assert [out.asnumpy().tolist() for out in outs] == [[3, 3], [3, 3]]
    values = [nd.array([1, 2]), nd.array([[1, 2], [3, 4]])]
    kv.pushpull(["a", "b"], values, out=[outs[0], values[1]])
    assert outs[0].asnumpy().tolist() == [1, 2]
    assert values[1].asnumpy().tolist() == [[1, 2], [3, 4]]
    kv.broadcast("a", nd.array([5, 6]), out=outs)
    assert outs[1].asnumpy().tolist() == [5, 6]
    kv.reset("a", nd.array([7, 8]))
    total = nd.zeros((2,))
    kv.allreduce(kv.pull("a"), out=total)
    assert total.asnumpy().tolist() == [7, 8]
    assert kv.allgather(total).tolist() == [[7, 8]]


def test_repeated_calls_read_and_write_the_present_arrays(kv: ncclkv.KVStore) -> None:
    kv.init("a", nd.zeros((2,)))
    value, out = nd.zeros((2,)), nd.zeros((2,))
    for _ in range(4):
        value += 1
        kv.pushpull("a", value, out=out)
        assert out.asnumpy().tolist() == value.asnumpy().tolist()


def test_a_group_writes_after_work_that_began_inside(kv: ncclkv.KVStore) -> None:
    size = 500
    kv.init("a", nd.ones((size, size)))
    kv.push("a", nd.zeros((size, size)))
    for _ in range(5):
        out = nd.ones((size, size))
        with kv.group():
            kv.pull("a", out=out)
            product = out
            for _ in range(10):
                product = nd.dot(out, product) / size
        assert (product.asnumpy() == 1).all()
        assert (out.asnumpy() == 0).all()


def test_the_trainer_and_updaters_take_them() -> None:
    for on_store in (True, False):
        weights = {"w": nd.ones((2,)), "b": nd.zeros((1,))}
        with ncclkv.Trainer(
            weights, "sgd", {"learning_rate": 0.5}, "local", update_on_kvstore=on_store
        ) as trainer:
            for _ in range(2):
                trainer.grads.update(w=nd.array([2, 4]), b=nd.ones((1,)))
                trainer.step(2)
        assert weights["w"].asnumpy().tolist() == [0, -1]
        assert weights["b"].asnumpy().tolist() == [-0.5]
    updater = ncclkv.optimizer.get_updater(ncclkv.optimizer.SGD(learning_rate=0.5))
    weight = nd.ones((2,))
    updater(3, nd.ones((2,)), weight)
    assert weight.asnumpy().tolist() == [0.5, 0.5]


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (
            lambda: nd.ones((2, 2)).tostype("row_sparse"),
            NotSupported,
            "a RowSparseNDArray is sparse (row_sparse), and stores hold dense values; pass its "
            ".tostype('default')",
        ),
        (
            lambda: nd.ones((2, 2)).tostype("csr"),
            NotSupported,
            "a CSRNDArray is sparse (csr), and stores hold dense values; pass its "
            ".tostype('default')",
        ),
        (
            lambda: nd.ones((2, 2), dtype="float64"),
            DTypeMismatch,
            "the key holds float32, the array float64; convert it with .astype('float32')",
        ),
        (lambda: nd.ones((3,)), ShapeMismatch, "the key has shape (2, 2), the array (3,)"),
    ],
)
def test_what_is_refused(kv: ncclkv.KVStore, make: Any, error: type, words: str) -> None:
    kv.init(3, nd.ones((2, 2)))
    with pytest.raises(error, match=re.escape(f"push of key 3: {words}")):
        kv.push(3, make())


def test_outs_that_share_memory_are_refused(kv: ncclkv.KVStore) -> None:
    kv.init(["a", "b"], [nd.ones((2, 2)), nd.ones((2, 2))])
    whole = nd.ones((3, 2))
    with pytest.raises(UsageError, match="overlap in memory"):
        kv.pull(["a", "b"], out=[whole[:2], whole[1:]])


def test_an_array_on_a_gpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in: MXNet's build for hosts has no such arrays."""
    array = SimpleNamespace(context=mx.gpu(1))
    monkeypatch.setattr(mxnet, "recognises", lambda x: x is array)
    words = "an MXNet SimpleNamespace on gpu(1) is in a device's memory and this store takes host"
    with pytest.raises(NotSupported, match=re.escape(words)) as raised:
        as_value(array, WHAT)
    assert str(raised.value).endswith("; pass its .as_in_context(mxnet.cpu())")
