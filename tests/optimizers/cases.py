"""Cases of an optimizer: its arguments, and its weights against the model's and MXNet's."""

from __future__ import annotations

import functools
import json
from typing import Any, ClassVar

import numpy as np
import pytest

from ncclkv.errors import UsageError
from ncclkv.kernels.base import Measured, Segments
from ncclkv.kernels.host import HostKernels
from ncclkv.kernels.programs import PROGRAMS
from ncclkv.optimizer import Optimizer, create
from ncclkv.optimizer.restore import from_config
from tests.harness.source import ROOT
from tests.optimizers.models import COMMON, DEFAULTS, Trajectory
from tests.optimizers.settings import KEY, SETTINGS, STEPS, factors, gradient, weights

RECORDED = ROOT / "tests" / "unit" / "optimizer" / "mxnet.json"

TOLERANCES = {"float64": 1e-13, "float32": 5e-6, "float16": 2**-10, "bfloat16": 2**-7}
"""Bounds of the difference to the model after each step, for weights of absolute value 1 or less.

In float32, 50 steps round 50 times to 6e-8.  16-bit weights are compared with a model that rounds
its weights to the same dtype after each step: the bound is the distance of two neighbours.
"""


@functools.cache
def recorded() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(RECORDED.read_text())
    return found


def dtype_of(name: str) -> np.dtype[Any]:
    if name != "bfloat16":
        return np.dtype(name)
    return np.dtype(pytest.importorskip("ml_dtypes", reason="bfloat16 needs it").bfloat16)


class Run:
    """Weights of a key that an optimizer updates by the kernels of the host."""

    def __init__(self, optimizer: Optimizer, first: np.ndarray, dtype: np.dtype[Any]) -> None:
        self.weights = first.astype(dtype)
        self.states = [
            np.zeros(first.size, each.dtype_for(dtype))
            if each.init == "zeros"
            else self.weights.astype(each.dtype_for(dtype))
            for each in optimizer.states
        ]
        self._optimizer = optimizer
        self._count = 0
        self._segments = Segments(np.array([0, first.size], np.int64))

    def step(self, given: np.ndarray) -> np.ndarray:
        """Return the weights after one more update."""
        self._count += 1
        program, kernels = self._optimizer.program, HostKernels()
        row = np.array([self._optimizer.scalars(KEY, self._count)], np.float64)
        arrays = self.weights, given.astype(self.weights.dtype), self.states, row, self._segments
        measured, norms = None, PROGRAMS[program].norms
        if norms is not None:
            measured = Measured(np.zeros((1, norms.sums)))
            kernels.measure(program, *arrays, measured.sums, np.empty(0))
        kernels.update(program, *arrays, measured=measured)
        return self.weights


def made(name: str, index: int) -> Optimizer:
    """Return the optimizer with the settings of that index, and the key's factors."""
    optimizer = create(name, **SETTINGS[name][index])
    optimizer.lr_mult = {KEY: factors(index)["lr_mult"]}
    optimizer.wd_mult = {KEY: factors(index)["wd_mult"]}
    return optimizer


class OptimizerCases:
    """Cases of one optimizer; a subclass is collected."""

    name: ClassVar[str]
    in_mxnet: ClassVar[bool] = True

    def test_the_defaults(self) -> None:
        optimizer = create(self.name)
        expected = {"name": self.name, **COMMON, **DEFAULTS[self.name]}
        assert optimizer.config() == {**expected, "lr_mult": {}, "wd_mult": {}}

    def test_arguments_are_kept_in_the_config_and_in_the_text(self) -> None:
        for index, settings in enumerate(SETTINGS[self.name]):
            optimizer = made(self.name, index)
            assert settings.items() <= optimizer.config().items()
            assert from_config(optimizer.config()).config() == optimizer.config()
            assert repr(optimizer) == repr(create(self.name, **settings))

    def test_wrong_numbers_are_refused_by_name(self) -> None:
        optimizer = create(self.name)
        for name in optimizer.hyperparameters:
            flag = isinstance(getattr(optimizer, name), bool)
            for wrong in (float("nan"), "0.1", *(() if flag else (True, np.False_))):
                with pytest.raises(UsageError, match=f"^{name}"):
                    create(self.name, **{name: wrong})

    def test_assigned_numbers_are_checked_and_take_effect(self) -> None:
        optimizer = create(self.name)
        for name, check in optimizer.checks.items():
            with pytest.raises(UsageError, match=f"^{name} is -1.*; give a "):
                setattr(optimizer, name, -1)
            version, row = optimizer.version, optimizer.scalars(KEY, 3)
            setattr(optimizer, name, 0.625)
            assert getattr(optimizer, name) == check(name, 0.625)
            assert optimizer.version != version
            assert optimizer.scalars(KEY, 3) != row, f"{name} has no effect"

    def test_torchs_names_are_refused(self) -> None:
        optimizer = create(self.name)
        named = {"lr": "learning_rate", "weight_decay": "wd"}
        if "epsilon" in optimizer.hyperparameters:
            named["eps"] = "epsilon"
        for other, name in named.items():
            words = f"{type(optimizer).__name__} has no attribute '{other}'.*'{name}'"
            with pytest.raises(UsageError, match=words):
                setattr(optimizer, other, 0.5)
        assert optimizer.config() == create(self.name).config()

    def test_rows_depend_on_the_count_only_if_updates_are_counted(self) -> None:
        optimizer = create(self.name)
        assert optimizer.counted == (optimizer.scalars(KEY, 1) != optimizer.scalars(KEY, 2))

    @pytest.mark.parametrize("dtype", TOLERANCES)
    def test_each_step_agrees_with_the_model(self, dtype: str) -> None:
        real, bound = dtype_of(dtype), TOLERANCES[dtype]
        narrow = real.itemsize == 2
        for index, settings in enumerate(SETTINGS[self.name]):
            run = Run(made(self.name, index), weights(), real)
            model = Trajectory(self.name, settings, weights(), **factors(index))
            for step in range(1, STEPS + 1):
                found, expected = run.step(gradient(step)), model.step(gradient(step))
                if narrow:
                    model.weights = expected = expected.astype(real).astype(np.float64)
                error = np.abs(found.astype(np.float64) - expected)
                largest = np.maximum(1, np.abs(expected))
                assert (error <= bound * largest).all(), f"settings {index}, step {step}"

    @pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
    def test_16_bit_weights_are_updated_in_float32_and_rounded_once(self, dtype: str) -> None:
        real = dtype_of(dtype)
        for index in range(len(SETTINGS[self.name])):
            narrow = Run(made(self.name, index), weights(), real)
            wide = Run(made(self.name, index), weights(), np.dtype(np.float32))
            for step in range(1, 5):
                wide.weights[...] = narrow.weights
                expected = wide.step(gradient(step)).astype(real)
                assert narrow.step(gradient(step)).tobytes() == expected.tobytes()
                for state, other in zip(narrow.states, wide.states, strict=True):
                    assert state.tobytes() == other.tobytes()

    def test_mxnets_weights(self) -> None:
        """Compare with float32 weights of MXNet 1.9.1, to 1e-6 of the weights, or of 1."""
        if not self.in_mxnet:
            assert self.name not in recorded()
            return
        for index, kept in enumerate(recorded()[self.name]):
            run = Run(made(self.name, index), weights(), np.dtype(np.float32))
            for step in range(1, STEPS + 1):
                found = run.step(gradient(step))
                if str(step) in kept:
                    text = f"settings {index}, step {step}"
                    np.testing.assert_allclose(
                        found, kept[str(step)], rtol=1e-6, atol=1e-6, err_msg=text
                    )
        assert len(recorded()[self.name]) == len(SETTINGS[self.name])
