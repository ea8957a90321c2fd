"""Pushes whose arrays are encoded where they are, without a copy in their bucket.

A push that is copied to its bucket first emits the event ``packed``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ncclkv
from ncclkv.comm.base import Collective
from ncclkv.engine.bucket_push import LENT_FROM_BYTES
from ncclkv.testing import run_ranks
from tests.harness.context import context_of

KEYS, SHAPE = ["a", "b", "c"], (500, 200)
TWO_BIT = {"type": "2bit", "threshold": 1.0}


def store(codec: dict[str, Any] | None = None, **options: Any) -> Any:
    kv = ncclkv.create("threads", **options)
    kv.set_gradient_compression(TWO_BIT if codec is None else codec)
    kv.init(KEYS, [np.zeros(SHAPE, np.float32)] * len(KEYS))
    return kv


def ones() -> list[np.ndarray]:
    return [np.ones(SHAPE, np.float32) for _ in KEYS]


class Packed(ncclkv.Instrument):
    """An instrument that counts the pushes which are copied to a bucket."""

    def __init__(self) -> None:
        self.count = 0

    def packed(self, *_: Any) -> None:
        self.count += 1


def in_group(kv: Any) -> None:
    with kv.group():
        kv.push(KEYS, ones())


def key_by_key(kv: Any) -> None:
    for key in KEYS:
        kv.push(key, np.ones(SHAPE, np.float32))


def strided(kv: Any) -> None:
    kv.push(KEYS, [np.ones((1000, 200), np.float32)[::2] for _ in KEYS])


def several(kv: Any) -> None:
    kv.push(KEYS, [[each / 2, each / 2] for each in ones()])


def views(kv: Any) -> None:
    filled = [kv.grad_view(key) for key in KEYS]
    for view in filled:
        view[...] = 1
    kv.push(KEYS, filled)


COPIED: dict[str, tuple[Callable[[Any], None], dict[str, Any]]] = {
    "group": (in_group, {}),
    "key by key": (key_by_key, {}),
    "strided": (strided, {}),
    "several arrays": (several, {}),
    "views": (views, {}),
    "checked for NaN": (lambda kv: kv.push(KEYS, ones()), {"nonfinite": "raise"}),
    "keys may be missing": (lambda kv: kv.push(KEYS, ones()), {"missing": "zeros"}),
}


@pytest.mark.parametrize("name", COPIED)
def test_other_pushes_are_copied_first(name: str) -> None:
    push, options = COPIED[name]

    def work() -> None:
        with store(**options) as kv:
            packed = Packed()
            kv.add_instrument(packed)
            push(kv)
            assert all((value == 3).all() for value in kv.pull(KEYS))
            assert packed.count > 0

    run_ranks(3, work)


@pytest.mark.parametrize("kind", ["1bit", "2bit", "topk"])
def test_a_push_of_a_whole_bucket_is_not_copied(kind: str) -> None:
    codec = {"type": kind} if kind == "topk" else {"type": kind, "threshold": 0.5}

    def work() -> None:
        with store(codec) as kv:
            packed = Packed()
            kv.add_instrument(packed)
            kv.push(KEYS, ones())
            kv.wait()
            assert packed.count == 0

    run_ranks(3, work)


@pytest.mark.parametrize(
    "codec", [{"type": "fp16"}, {"type": "powersgd", "start_powerSGD_iter": 0}]
)
def test_types_that_read_gradients_later_get_a_copy(codec: dict[str, Any]) -> None:
    def work() -> None:
        with store(codec) as kv:
            packed, arrays = Packed(), ones()
            kv.add_instrument(packed)
            kv.push(KEYS, arrays)
            for array in arrays:
                array[...] = np.nan
            for value in kv.pull(KEYS):
                np.testing.assert_allclose(value, 3, rtol=1e-5)
            assert packed.count == 1

    run_ranks(3, work)


def test_a_short_push_is_copied() -> None:
    with ncclkv.create("threads") as kv:
        kv.set_gradient_compression(TWO_BIT)
        kv.init("w", np.zeros(LENT_FROM_BYTES // 4 - 64, np.float32))
        packed = Packed()
        kv.add_instrument(packed)
        kv.push("w", np.ones(LENT_FROM_BYTES // 4 - 64, np.float32))
        kv.wait()
        assert packed.count == 1


def test_a_bucket_with_keys_sent_whole_is_copied() -> None:
    def work() -> None:
        with store() as kv:
            kv.set_gradient_compression(None, keys="b")
            packed = Packed()
            kv.add_instrument(packed)
            kv.push(KEYS, ones())
            assert all((value == 3).all() for value in kv.pull(KEYS))
            assert packed.count == 1

    run_ranks(3, work)


def test_a_push_whose_launch_fails_is_launched_again() -> None:
    with ncclkv.create("threads") as kv:
        kv.set_gradient_compression(TWO_BIT)
        kv.init(KEYS, [np.zeros(SHAPE, np.float32)] * len(KEYS))
        kv.push(KEYS, [-array for array in ones()])
        arrays = ones()

        def fail(*_: Any) -> Collective:
            raise MemoryError("no memory today")

        kv.set_gradient_compression(TWO_BIT)  # so that the next launch prepares its sum
        (reduction,) = {*context_of(kv).engine.layout["a"].state.coded.values()}
        prepare, reduction.prepare = reduction.prepare, fail
        with pytest.raises(MemoryError):
            kv.push(KEYS, arrays)
        reduction.prepare = prepare
        for array in arrays:
            array[...] = np.nan
        assert all((value == 1).all() for value in kv.pull(KEYS))


def test_a_launch_that_fails_has_launched_none_of_its_ranges() -> None:
    with ncclkv.create("threads") as kv:
        kv.set_gradient_compression(TWO_BIT, keys="a")
        kv.init(["a", "b"], [np.zeros(4, np.float32)] * 2)
        engine = context_of(kv).engine
        dense = engine.reductions.dense
        prepare = dense.prepare

        def fail(*_: Any) -> Collective:
            raise MemoryError("no memory today")

        dense.prepare = fail  # type: ignore[method-assign]
        with pytest.raises(MemoryError):
            kv.push(["a", "b"], [np.full(4, 0.6, np.float32)] * 2)
        dense.prepare = prepare  # type: ignore[method-assign]
        kv.wait()
        assert (kv.pull("a") == 0).all()
        assert (engine.reductions.residuals.all_of("a")[0] == np.float32(0.6)).all()
