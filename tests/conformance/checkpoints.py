"""`save` and `load`: a store that continues from a checkpoint equals the saved one, bit for bit.

The leader's directory counts; the directories that other ranks name are ignored.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

import ncclkv.optimizer as optimizer
from tests.conformance.capabilities import current_buffers
from tests.conformance.expect import SHAPE, full, pulled, same, total
from tests.conformance.registry import case
from tests.conformance.stores import Stores

Array = NDArray[Any]

NAMES = ["w", "../b", "", "é\ud800\0"]
STATES = "step-000000000-save-000001-states"
SHAPES = [(40, 3), (7,), (), (0, 5)]


def leads(kv: Any, root: int = 0) -> bool:
    """Return whether this rank writes and reads."""
    return bool(kv.rank == root)


@contextmanager
def new_store(create: Stores, **options: Any) -> Iterator[Any]:
    """Yield a store that is closed at the end of the block."""
    with create.open(**{"update_on": create.update_on, **options}) as kv:
        yield kv


def values(seed: int) -> list[Array]:
    """Return values that use all their bits, equal on all ranks."""
    rng = np.random.default_rng(seed)
    return [np.asarray(rng.standard_normal(shape), np.float32) for shape in SHAPES]


def step(kv: Any, seed: int, keys: list[Any] = NAMES) -> None:
    """Push gradients that differ between ranks, whose sums are the same bits in every layout."""
    rng = np.random.default_rng([seed, kv.rank])
    kv.push(keys, [np.asarray(rng.integers(-9, 9, s) / 8, np.float32) for s in SHAPES])


def bits(kv: Any, keys: list[Any] = NAMES) -> list[bytes]:
    """Return the values as bytes, on every rank."""
    outs = [np.empty(shape, np.float32) for shape in SHAPES]
    kv.pull(keys, out=outs)
    return [out.tobytes() for out in outs]


def descent() -> optimizer.SGD:
    return optimizer.SGD(learning_rate=0.1, momentum=0.9, wd=0.01)


@case(needs="safetensors")
def a_loaded_run_continues_bit_for_bit(create: Stores) -> None:
    with TemporaryDirectory() as directory:
        kv = create()
        kv.init(NAMES, values(1))
        kv.set_optimizer(descent())
        for number in range(3):
            step(kv, number)
        path = kv.save(directory, step=3, extra={"order": [2, 0, 1], "rng": 2**100})
        for number in range(3, 6):
            step(kv, number)
        for nbytes in (0, 256, 1 << 20):
            for placement in ("every_rank", "root", "sharded"):
                with new_store(create, update_on=placement, bucket_bytes=nbytes) as other:
                    loaded = other.load(directory)
                    assert loaded == (3, {"order": [2, 0, 1], "rng": 2**100}, path)
                    for number in range(3, 6):
                        step(other, number)
                    assert bits(other) == bits(kv)


@case(needs="safetensors")
def other_optimizers_continue_bit_for_bit(create: Stores) -> None:
    for name, numbers in (("adam", {}), ("nadam", {"wd": 0.1}), ("rmsprop", {"centered": True})):
        with TemporaryDirectory() as directory, new_store(create) as kv:
            kv.init(NAMES, values(1))
            kv.set_optimizer(optimizer.create(name, learning_rate=0.1, **numbers))
            for number in range(3):
                step(kv, number)
            kv.save(directory)
            step(kv, 3)
            with new_store(create) as other:
                other.load(directory)
                step(other, 3)
                assert bits(other) == bits(kv), name


@case(needs="safetensors")
def the_root_writes_and_reads(create: Stores) -> None:
    with TemporaryDirectory() as directory:
        last = create(update_on="root").num_workers - 1
        kv = create(update_on="root", root=last)
        kv.init(NAMES, values(1))
        kv.set_optimizer(descent())
        step(kv, 0)
        kv.save(directory)
        assert bool(os.listdir(directory)) == leads(kv, last)
        step(kv, 1)
        with new_store(create, update_on="root", root=last) as other:
            other.load(directory)
            step(other, 1)
            assert bits(other) == bits(kv)


@case(needs="safetensors")
def a_load_into_a_store_that_has_changed(create: Stores) -> None:
    with TemporaryDirectory() as directory:
        kv = create(bucket_bytes=512)
        kv.init(NAMES, values(1))
        sgd = descent()
        kv.set_optimizer(sgd)
        step(kv, 0)
        sgd.lr_mult["w"] = 0.5
        kv.save(directory)
        step(kv, 1)
        expected = bits(kv)
        sgd.learning_rate, sgd.lr_mult, sgd.wd_mult = 7.0, {}, {"": 3.0}
        step(kv, 2)
        step(kv, 3)  # may wait in its bucket
        kv.load(directory)
        assert (sgd.learning_rate, sgd.lr_mult, sgd.wd_mult) == (0.1, {"w": 0.5}, {})
        step(kv, 1)
        assert bits(kv) == expected


@case(needs="safetensors")
def keys_in_another_order(create: Stores) -> None:
    with TemporaryDirectory() as directory:
        kv = create()
        kv.init(NAMES, values(1))
        kv.set_optimizer(descent())
        step(kv, 0)
        kv.save(directory)
        step(kv, 1)
        with new_store(create) as other:
            other.init(NAMES[::-1], values(2)[::-1])
            other.load(directory)
            step(other, 1)
            assert bits(other) == bits(kv)
            assert other.keys() == NAMES[::-1]


@case(needs="safetensors")
def keys_without_a_bucket(create: Stores) -> None:
    with TemporaryDirectory() as directory:
        kv = create()
        kv.set_optimizer(descent())
        kv.init(NAMES, values(1))
        kv.save(directory)
        step(kv, 1)
        with new_store(create) as other:
            other.load(directory)
            other.init("another", full(1))
            step(other, 1)
            assert bits(other) == bits(kv)
            same(pulled(other, "another"), 1)
        with new_store(create) as other:
            other.init(NAMES, values(2))
            if other.rank == 0:
                other.value("w")  # seals the layout, on one rank
            other.load(directory)
            step(other, 1)
            assert bits(other) == bits(kv)


@case(needs="safetensors")
def every_dtype_and_op(create: Stores) -> None:
    dtypes = ["bool", "int8", "uint16", "int32", "uint64", "float16", "float64"]
    dtypes += ["complex64", "complex128"]
    refused = current_buffers().capabilities.refused
    dtypes = [dtype for dtype in dtypes if not refused(np.dtype(dtype), "sum")]
    arrays = [np.arange(6).reshape(SHAPE).astype(dtype) for dtype in dtypes]
    for array in arrays:
        if array.dtype.kind == "c":
            array *= 1 + 2j
    names = list(range(-2, len(arrays) - 2))
    with TemporaryDirectory() as directory:
        kv = create()
        kv.init(names, arrays)
        kv.init(10**30, full(-1), op="max")
        kv.init(10**29, full(-1), op="prod")
        kv.save(directory)
        with new_store(create) as other:
            other.load(directory)
            keys = kv.keys()
            assert other.keys() == keys
            assert [other.spec(key) for key in keys] == [kv.spec(key) for key in keys]
            for key, array in zip(names, arrays, strict=True):
                same(pulled(other, key, array), array)
            other.push(10**30, full(other.rank))
            same(pulled(other, 10**30), other.num_workers - 1)
            other.push(10**29, full(-2))
            same(pulled(other, 10**29), (-2) ** other.num_workers)


@case(needs="ml_dtypes")
def half_precision_with_wider_momenta(create: Stores) -> None:
    import ml_dtypes

    for dtype in (np.float16, ml_dtypes.bfloat16):
        with TemporaryDirectory() as directory:
            kv = create()
            kv.init(3, full(1, dtype=dtype))
            kv.set_optimizer(optimizer.SGD(learning_rate=0.125, momentum=0.5))
            kv.push(3, full(0.75, dtype=dtype))
            kv.save(directory)
            kv.push(3, full(0.25, dtype=dtype))
            with new_store(create, update_on="every_rank") as other:
                other.load(directory)
                other.push(3, full(0.25, dtype=dtype))
                got, expected = (pulled(s, 3, full(0, dtype=dtype)) for s in (other, kv))
                assert got.tobytes() == expected.tobytes()


@case(needs="safetensors")
def pending_pushes_are_saved(create: Stores) -> None:
    with TemporaryDirectory() as directory:
        kv = create()
        kv.init([3, 5], [full(2), full(4)])
        kv.push(3, full(kv.rank + 1))
        kv.save(directory)
        same(kv.pull(3, local=True), total(kv))
        with new_store(create) as other:
            other.load(directory)
            same(pulled(other, 3), total(kv))
            same(pulled(other, 5), 4)


@case(needs="safetensors")
def a_store_without_keys(create: Stores) -> None:
    with TemporaryDirectory() as directory:
        kv = create()
        kv.set_optimizer(descent())
        kv.save(directory, extra=[10**900, ("a", None)])
        with new_store(create) as other:
            assert other.load(directory).extra == [10**900, ["a", None]]
            other.init(NAMES, values(1))
            kv.init(NAMES, values(1))
            step(other, 0)
            step(kv, 0)
            assert bits(other) == bits(kv)


@case(needs="safetensors")
def a_load_of_values_alone_resets_the_optimizer(create: Stores) -> None:
    with TemporaryDirectory() as directory:
        kv = create()
        kv.init(NAMES, values(1))
        kv.save(directory)
        kv.set_optimizer(descent())
        step(kv, 0)
        expected = bits(kv)
        step(kv, 1)
        kv.load(directory)
        step(kv, 0)
        assert bits(kv) == expected


class Sum:
    """Updater with state: every value is the sum of all pushes, times a factor."""

    def __init__(self, factor: float) -> None:
        self.factor = factor
        self.sums: dict[Any, Array] = {}

    def update(self, key: Any, grad: Array, stored: Array) -> None:
        self.sums[key] = self.sums.get(key, 0) + grad
        stored[...] = self.factor * self.sums[key]

    def state_dict(self) -> dict[Any, Any]:
        return {**self.sums, "settings": {"factor": self.factor}}

    def load_state_dict(self, state: dict[Any, Any]) -> None:
        self.factor = state.pop("settings")["factor"]
        # A user copies states to the gradients' memory in the same way.
        self.sums = {key: current_buffers().put(array) for key, array in state.items()}


@case(needs="safetensors")
def an_updater_with_state(create: Stores) -> None:
    with TemporaryDirectory() as directory:
        kv = create()
        kv.init([3, 5], [full(2), full(4)])
        kv.set_updater(Sum(2.0))
        kv.push(3, full(kv.rank + 1))
        kv.save(directory)
        with new_store(create) as other:
            other.set_updater(Sum(7.0))
            other.load(directory)
            other.push(3, full(kv.rank + 1))
            same(pulled(other, 3), 4 * total(kv))
            same(pulled(other, 5), 4)


@case(needs="safetensors")
def optimizer_states_alone(create: Stores) -> None:
    with TemporaryDirectory() as directory:
        kv = create()
        kv.init(NAMES, values(1))
        kv.set_optimizer(descent())
        step(kv, 0)
        now = [kv.pull(name) for name in NAMES]
        for dump, rate in ((False, 0.25), (True, 0.1)):
            kv.save_optimizer_states(directory, dump_optimizer=dump)
            with new_store(create) as other:
                other.init(NAMES, values(2))
                sgd = descent()
                other.set_optimizer(sgd)
                step(other, 7)
                other.reset(NAMES, now)
                sgd.learning_rate = 0.25
                other.load_optimizer_states(directory)
                assert sgd.learning_rate == rate
                assert bits(other) == [current_buffers().get(array).tobytes() for array in now]
        with new_store(create) as other:
            other.init(NAMES, now)
            other.set_optimizer(descent())
            other.load_optimizer_states(directory)
            step(other, 1)
            step(kv, 1)
            assert bits(other) == bits(kv)


@case(needs="safetensors")
def states_before_the_first_step(create: Stores) -> None:
    with TemporaryDirectory() as directory:
        kv = create()
        kv.init(NAMES, values(1))
        kv.set_optimizer(descent())
        kv.save_optimizer_states(directory)
        step(kv, 1)
        expected = bits(kv)
        with new_store(create) as other:
            other.init(NAMES, values(2))
            other.set_optimizer(descent())
            step(other, 7)
            momenta = other.save(directory)
            other.reset(NAMES, values(1))
            other.load_optimizer_states(momenta)
            other.load_optimizer_states(os.path.join(directory, STATES))
            step(other, 1)
            assert bits(other) == expected


@case(needs="safetensors")
def the_last_checkpoints_are_kept(create: Stores) -> None:
    with TemporaryDirectory() as directory:
        kv = create()
        kv.init(3, full(0))
        assert kv.load(directory, required=False) is None
        assert kv.load(os.path.join(directory, "none"), required=False) is None
        for number, at in enumerate((1, 2, 9, 5, 5)):
            kv.push(3, full(number / kv.num_workers))
            kv.save(directory, step=at, keep=3)
        if leads(kv):
            assert sorted(os.listdir(directory)) == [
                "step-000000005-save-000004",
                "step-000000005-save-000005",
                "step-000000009-save-000003",
            ]
        assert kv.load(directory).step == 5
        np.testing.assert_allclose(pulled(kv, 3), 4)
        older = os.path.join(directory, "step-000000009-save-000003")
        assert kv.load(older)[:2] == (9, None)
        np.testing.assert_allclose(pulled(kv, 3), 2)
        assert kv.load(directory).step == 5
        kv.save(directory, step=np.int64(6), keep=1)
        assert len(os.listdir(directory)) == leads(kv)
