"""Checkpoints of stores that compress gradients: residuals are saved, and given to the senders."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

import ncclkv.optimizer as optimizer
from ncclkv.store.backends import ALONE
from tests.conformance.capabilities import current_buffers
from tests.conformance.checkpoints import PLACEMENTS, leads, new_store, turned
from tests.conformance.registry import case
from tests.conformance.stores import Stores
from tests.harness.context import context_of

Array = NDArray[Any]

SHAPES: dict[str, tuple[int, ...]] = {"w": (40, 25), "s": (), "none": (0, 5), "bias": (7,)}
LONG = {**SHAPES, "long": (70_001,)}
TYPES: list[dict[str, Any]] = [
    {"type": "1bit"},
    {"type": "2bit", "threshold": 0.75},
    {"type": "fp16", "error_feedback": True},
    {"type": "powersgd", "rank": 2, "start_powerSGD_iter": 2},
]
TWO_BIT = TYPES[1]
"""Any type that keeps residuals."""


def prepared(kv: Any, parameters: dict[str, Any] | None, shapes: Any = SHAPES) -> Any:
    """Set the codec of all keys but "bias" and the optimizer; then add the keys."""
    kv.set_gradient_compression(parameters)
    kv.set_gradient_compression(None, keys="bias")
    kv.set_optimizer(optimizer.SGD(learning_rate=0.1, momentum=0.9))
    kv.init(list(shapes), [np.zeros(shape, np.float32) for shape in shapes.values()])
    return kv


@contextmanager
def other_store(create: Stores, parameters: dict[str, Any] | None, **options: Any) -> Iterator[Any]:
    """Yield a store without keys, which compresses gradients."""
    with new_store(create, **options) as kv:
        kv.set_gradient_compression(parameters)
        kv.set_gradient_compression(None, keys="bias")
        yield kv


def step(kv: Any, number: int, arrays: int = 1) -> None:
    """Push some arrays of each key, different on each rank.

    Residuals use all bits.  Sums that are not compressed are exact: their order depends on the
    placement.
    """
    rng = np.random.default_rng([number, kv.rank])
    shapes = {key: kv.spec(key).shape for key in list(kv.keys())}
    pushed = [
        [np.asarray(rng.standard_normal(shape), np.float32) for _ in range(arrays)]
        for shape in shapes.values()
    ]
    for array in pushed[list(shapes).index("bias")] if "bias" in shapes else ():
        np.round(array, out=array)
    kv.push(list(shapes), pushed if arrays > 1 else [each[0] for each in pushed])


def bits(kv: Any) -> dict[str, bytes]:
    """Return the values as bytes, on every rank."""
    return {key: current_buffers().get(kv.pull(key)).tobytes() for key in sorted(kv.keys())}


def residuals(kv: Any) -> dict[str, list[Array]]:
    """Return copies of the residuals of this rank's senders."""
    kept, get = context_of(kv).engine.reductions.residuals, current_buffers().get
    kv.wait()
    return {key: [get(each).copy() for each in kept.all_of(key)] for key in sorted(kv.keys())}


def same_residuals(kv: Any, expected: dict[str, list[Array]]) -> None:
    """Fail unless the residuals of this rank's senders have the bits expected."""
    found = residuals(kv)
    for key, arrays in expected.items():
        assert [each.tobytes() for each in found[key]] == [each.tobytes() for each in arrays], key


def no_residual(kv: Any) -> None:
    """Fail if a residual is not zero."""
    for key, arrays in residuals(kv).items():
        assert not any(each.any() for each in arrays), key


def manifest(path: str) -> Any:
    """Return the content of ``checkpoint.json``."""
    with open(os.path.join(path, "checkpoint.json")) as file:
        return json.load(file)


@contextmanager
def logged(words: str, lines: int) -> Iterator[None]:
    """Fail unless the block logs some lines with these words, at the level INFO."""
    log, found = logging.getLogger("ncclkv"), list[str]()

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(record.getMessage())

    listener, level = Listener(logging.INFO), log.level
    log.addHandler(listener)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(listener)
        log.setLevel(level)
    assert sum(words in line for line in found) == lines, found


def goes_on(create: Stores, parameters: dict[str, Any], shapes: Any, arrays: int = 1) -> None:
    """Save after some steps, and go on in stores of each placement with the same bits."""
    with TemporaryDirectory() as directory, new_store(create) as kv:
        prepared(kv, parameters, shapes)
        for number in range(3):
            step(kv, number, arrays)
        kv.save(directory, step=3)
        saved = residuals(kv)
        assert any(each.any() for each in saved["w"])
        for number in range(3, 5):
            step(kv, number, arrays)
        expected, owed = bits(kv), residuals(kv)
        for placement in turned(PLACEMENTS, PLACEMENTS.index(create.update_on)):
            with other_store(create, parameters, update_on=placement) as other:
                assert other.load(directory).step == 3
                same_residuals(other, saved)
                for number in range(3, 5):
                    step(other, number, arrays)
                assert bits(other) == expected, (parameters, placement)
                same_residuals(other, owed)


@case(needs="safetensors")
def a_compressed_run_continues_bit_for_bit(create: Stores) -> None:
    for parameters in TYPES:
        goes_on(create, parameters, SHAPES)


@case(needs="safetensors")
def long_keys_continue_bit_for_bit(create: Stores) -> None:
    goes_on(create, TWO_BIT, LONG)


@case(needs="safetensors")
def a_basis_of_another_type_is_dropped(create: Stores) -> None:
    parameters = {"type": "powersgd", "start_powerSGD_iter": 0, "use_error_feedback": False}
    with TemporaryDirectory() as directory, new_store(create) as kv:
        kv.set_gradient_compression(parameters)
        kv.init("w", np.zeros(SHAPES["w"], np.float32))
        step(kv, 0)
        kv.save(directory)
        with other_store(create, parameters) as other:
            other.load(directory)  # without an optimizer no key has a bucket
            bases = context_of(other).engine.reductions.bases
            basis = bases.find("w")
            assert basis is not None
            assert basis.launches == 1
            other.set_gradient_compression({"type": "topk"})
            step(other, 1)
            other.wait()
            assert bases.find("w") is None


@case(needs="safetensors")
def residuals_of_nodes_go_to_the_slices_of_other_buckets(create: Stores) -> None:
    for parameters in TWO_BIT, TYPES[2], {"type": "topk", "ratio": 0.05}:
        goes_on_in_other_buckets(create, {**parameters, "scope": "node"})


def goes_on_in_other_buckets(create: Stores, parameters: dict[str, Any]) -> None:
    """Save, and go on in stores of other placements and buckets with the same bits."""
    with TemporaryDirectory() as directory, new_store(create) as kv:
        prepared(kv, parameters, LONG)
        for number in range(3):
            step(kv, number)
        kv.save(directory, step=3)
        step(kv, 3)
        expected = bits(kv)
        for placement in PLACEMENTS:
            for nbytes in (0, 4096, 1 << 20):
                options = {"update_on": placement, "bucket_bytes": nbytes}
                with other_store(create, parameters, **options) as other:
                    other.load(directory)
                    step(other, 3)
                    assert bits(other) == expected, (placement, nbytes)


@case(needs="safetensors")
def several_arrays_of_a_key_keep_their_residuals(create: Stores) -> None:
    for parameters in TYPES:
        goes_on(create, parameters, SHAPES, arrays=3)


@case(needs="safetensors")
def residuals_are_replaced_in_a_store_that_has_changed(create: Stores) -> None:
    with TemporaryDirectory() as directory:
        kv = prepared(create(), TWO_BIT)
        step(kv, 0)
        path = kv.save(directory, keep=9)
        saved = residuals(kv)
        step(kv, 1)
        expected = bits(kv)
        step(kv, 2)
        kv.load(path)
        same_residuals(kv, saved)
        step(kv, 1)
        assert bits(kv) == expected
        with other_store(create, TWO_BIT) as other:
            prepared(other, TWO_BIT, dict(reversed(SHAPES.items())))
            other.load(path)
            same_residuals(other, saved)


@case(needs="safetensors")
def a_checkpoint_without_residuals_sets_them_to_zero(create: Stores) -> None:
    with TemporaryDirectory() as directory:
        plain = prepared(create(), None)
        step(plain, 0)
        path = plain.save(directory)
        if leads(plain):
            assert manifest(path)["compression"] is None
        kv = prepared(create(), TWO_BIT)
        step(kv, 0)
        kv.load(directory)
        no_residual(kv)
        assert bits(kv) == bits(plain)


@case(needs="safetensors")
def keys_that_have_no_residual_yet(create: Stores) -> None:
    with TemporaryDirectory() as directory:
        kv = prepared(create(), TWO_BIT)
        path = kv.save(directory)
        if leads(kv):
            assert manifest(path)["compression"] is None
        with other_store(create, TWO_BIT) as other:
            other.load(directory)
            for number in range(2):
                step(kv, number)
                step(other, number)
            assert bits(other) == bits(kv)
            path = other.save(directory)
            saved = residuals(other)
        with other_store(create, TWO_BIT) as other:
            other.load(directory)
            again = other.save(directory)  # no key has a bucket
            if leads(other):
                assert manifest(again)["compression"] == manifest(path)["compression"]
            same_residuals(other, saved)


@case(needs="safetensors")
def residuals_of_another_type_are_dropped(create: Stores) -> None:
    with TemporaryDirectory() as directory:
        kv = prepared(create(), TWO_BIT)
        step(kv, 0)
        kv.save(directory)
        expected = bits(kv)
        kv.barrier()
        words = "load: the residuals of 3 keys are dropped: key 'w' was saved with the codec 2bit"
        for parameters in ({"type": "1bit"}, {"type": "fp16"}, None):
            with other_store(create, parameters) as other:
                other.load(directory)
                no_residual(other)
                assert bits(other) == expected
        if create.name in ALONE:
            with logged(words, 1), other_store(create, {"type": "1bit"}) as other:
                other.load(directory)
            with logged(words, 0), other_store(create, {**TWO_BIT, "threshold": 2}) as other:
                other.load(directory)
                same_residuals(other, residuals(kv))


@case(needs="safetensors")
def optimizer_states_alone_leave_residuals(create: Stores) -> None:
    with TemporaryDirectory() as directory:
        kv = prepared(create(), TWO_BIT)
        step(kv, 0)
        kv.save_optimizer_states(directory)
        step(kv, 1)
        before = residuals(kv)
        kv.load_optimizer_states(directory)
        same_residuals(kv, before)
        whole = kv.save(directory)
        step(kv, 2)
        before = residuals(kv)
        kv.load_optimizer_states(whole)
        same_residuals(kv, before)


class Sum:
    """Updater with state: every value is the sum of all pushes."""

    def __init__(self) -> None:
        self.sums: dict[Any, Array] = {}

    def update(self, key: Any, grad: Array, stored: Array) -> None:
        self.sums[key] = self.sums.get(key, 0) + grad
        stored[...] = self.sums[key]

    def state_dict(self) -> dict[Any, Any]:
        return {**self.sums, "number": len(self.sums)}

    def load_state_dict(self, state: dict[Any, Any]) -> None:
        state.pop("number")
        self.sums = state


@case(needs="safetensors")
def the_state_of_an_updater_is_beside_residuals(create: Stores) -> None:
    with TemporaryDirectory() as directory:
        kv = prepared(create(), TWO_BIT)
        kv.set_updater(Sum())
        step(kv, 0)
        kv.save(directory)
        step(kv, 1)
        with other_store(create, TWO_BIT) as other:
            other.set_updater(Sum())
            other.load(directory)
            step(other, 1)
            assert bits(other) == bits(kv)
