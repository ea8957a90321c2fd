"""Settings of every optimizer, and the inputs of its tests.

The script that records MXNet's values imports this module, too, beside NumPy 1.23.
"""

from __future__ import annotations

from typing import Any

import numpy as np

STEPS = 50
SIZE = 8
KEY = 0

Settings = dict[str, Any]

_ALL: Settings = {"wd": 0.1, "rescale_grad": 0.5, "clip_gradient": 0.125}
"""Scalars with which decay, factor and bound have an effect."""

FACTORS = {"lr_mult": 0.5, "wd_mult": 2.0}
"""Factors of the key in the settings of `FACTORED`."""

SETTINGS: dict[str, list[Settings]] = {
    "sgd": [{}, {"learning_rate": 0.1, "momentum": 0.9, **_ALL}],
    "nag": [
        {"learning_rate": 0.1, **_ALL},
        {"learning_rate": 0.1, "momentum": 0.9},
        {"learning_rate": 0.1, "momentum": 0.9, **_ALL},
    ],
    "adam": [
        {},
        {"learning_rate": 0.01, **_ALL},
        {"learning_rate": 0.01, "beta1": 0.5, "beta2": 0.9, "epsilon": 0.001, "wd": 0.1},
    ],
    "adamw": [
        {},
        {"learning_rate": 0.01, **_ALL},
        {"learning_rate": 0.01, "beta1": 0.5, "beta2": 0.9, "epsilon": 0.001},
    ],
    "rmsprop": [
        {},
        {"learning_rate": 0.01, "gamma1": 0.5, "clip_weights": 0.75, **_ALL},
        {"centered": True},
        {"centered": True, "gamma2": 0.5, "epsilon": 0.001, "clip_weights": 0.75, **_ALL},
    ],
    "adagrad": [{}, {"learning_rate": 0.1, "eps": 0.001, **_ALL}],
    "ftrl": [{}, {"learning_rate": 0.5, "lamda1": 0.25, "beta": 0.5, **_ALL}],
    "signum": [
        {},
        {"momentum": 0.0, "wd": 0.1},
        {"learning_rate": 0.1, "momentum": 0.5, "wd_lh": 0.1, **_ALL},
    ],
    "test": [{}, {"rescale_grad": -0.25, "wd": 0.1}],
    "adamax": [{}, {"learning_rate": 0.01, "beta1": 0.5, "beta2": 0.75, **_ALL}],
    "nadam": [
        {},
        {"learning_rate": 0.01, **_ALL},
        {"beta1": 0.5, "beta2": 0.75, "epsilon": 0.001, "schedule_decay": 0.5},
    ],
    "adadelta": [{}, {"rho": 0.5, "epsilon": 0.001, **_ALL, "wd": 0.01}],
    "ftml": [{}, {"learning_rate": 0.05, "beta1": 0.75, "beta2": 0.9, "epsilon": 0.001, **_ALL}],
    "lars": [
        {},
        {"learning_rate": 0.1, "momentum": 0.9, "eta": 0.5, "eps": 0.01, **_ALL},
        {"learning_rate": 0.5, "momentum": 0.5, "eta": 0.25, "wd": 0.01},
    ],
    "lamb": [
        {},
        {"learning_rate": 0.01, "beta1": 0.5, "beta2": 0.9, "epsilon": 0.001, **_ALL},
        {"learning_rate": 0.01, "lower_bound": 2.0},
        {"learning_rate": 0.01, "upper_bound": 0.5, "wd": 0.1},
        {"learning_rate": 0.01, "bias_correction": False, "wd": 0.1},
    ],
    "lion": [
        {"learning_rate": 0.01},
        {"learning_rate": 0.01, **_ALL},
        {"beta1": 0.5, "beta2": 0.75, "wd": 0.1},
    ],
}
"""Arguments of each optimizer, by its name."""

FACTORED = 1
"""Index of the settings, of each optimizer, whose key has the factors."""


def weights() -> np.ndarray:
    """Return the first weights, exact in 16 bits; one is 0."""
    return (np.arange(SIZE) * 7 % 11 - 5) / 8


def gradient(step: int) -> np.ndarray:
    """Return the gradient of a step from 1, exact in 16 bits; no element is 0."""
    return ((np.arange(SIZE) * 5 + step * 3) % 17 * 2 - 17) / 32


def factors(index: int) -> dict[str, float]:
    """Return the factors of the key in the settings of that index."""
    return FACTORS if index == FACTORED else dict.fromkeys(FACTORS, 1.0)
