"""Models of the optimizers in float64 NumPy, written from the formulas of MXNet and the papers.

A model is a function of weights, gradient, a dict that keeps its states, and the scalars of a step
as attributes.  The function returns the new weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

Vector = np.ndarray
Kept = dict[str, Any]
Model = Callable[[Vector, Vector, Kept, Any], Vector]

DEFAULTS: dict[str, dict[str, Any]] = {
    "sgd": {"learning_rate": 0.01, "momentum": 0.0},
    "nag": {"learning_rate": 0.01, "momentum": 0.0},
    "adam": {"learning_rate": 0.001, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8},
    "adamw": {"learning_rate": 0.001, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8, "wd": 0.01},
    "rmsprop": {
        "learning_rate": 0.001,
        "gamma1": 0.9,
        "gamma2": 0.9,
        "epsilon": 1e-8,
        "centered": False,
        "clip_weights": None,
    },
    "adagrad": {"learning_rate": 0.01, "eps": 1e-7},
    "ftrl": {"lamda1": 0.01, "learning_rate": 0.1, "beta": 1.0},
    "signum": {"learning_rate": 0.01, "momentum": 0.9, "wd_lh": 0.0},
    "test": {"learning_rate": 0.01},
    "adamax": {"learning_rate": 0.002, "beta1": 0.9, "beta2": 0.999},
    "nadam": {
        "learning_rate": 0.001,
        "beta1": 0.9,
        "beta2": 0.999,
        "epsilon": 1e-8,
        "schedule_decay": 0.004,
    },
    "adadelta": {"rho": 0.9, "epsilon": 1e-5, "learning_rate": 0.01},
    "ftml": {"learning_rate": 0.01, "beta1": 0.6, "beta2": 0.999, "epsilon": 1e-8},
    "lars": {
        "learning_rate": 0.01,
        "momentum": 0.0,
        "eta": 0.001,
        "eps": 0.0,
        "momentum_correction": True,
    },
    "lamb": {
        "learning_rate": 0.001,
        "beta1": 0.9,
        "beta2": 0.999,
        "epsilon": 1e-6,
        "lower_bound": None,
        "upper_bound": None,
        "bias_correction": True,
    },
    "lion": {"learning_rate": 1e-4, "beta1": 0.9, "beta2": 0.99},
}
"""Defaults of the arguments: of MXNet 1.9.1; torch's of AdamW, and the paper's betas of Lion."""

COMMON = {"wd": 0.0, "rescale_grad": 1.0, "clip_gradient": None}


def clip(x: Vector, bound: float | None) -> Vector:
    return x if bound is None else np.minimum(np.maximum(x, -bound), bound)


def plain(g: Vector, o: Any) -> Vector:
    """Return the gradient without decay."""
    return clip(g * o.rescale_grad, o.clip_gradient)


def inside(w: Vector, g: Vector, o: Any) -> Vector:
    """Return the gradient with the decay inside of the bound."""
    return clip(g * o.rescale_grad + o.wd * w, o.clip_gradient)


def mean(kept: Kept, name: str, beta: float, x: Vector) -> Vector:
    """Return a moving mean that begins with 0."""
    kept[name] = beta * kept.get(name, 0.0) + (1 - beta) * x
    return kept[name]


def sgd(w: Vector, g: Vector, kept: Kept, o: Any) -> Vector:
    velocity = o.momentum * kept.get("m", 0.0) - o.learning_rate * (plain(g, o) + o.wd * w)
    kept["m"] = velocity
    return w + velocity


def nag(w: Vector, g: Vector, kept: Kept, o: Any) -> Vector:
    """Return the weights in the form of Sutskever and others, 2013, moved ahead by the momentum.

    MXNet 1.9 computes the velocity that it keeps with the decay of the new weights.
    """
    old, step = o.momentum * kept.get("m", 0.0), o.learning_rate * (plain(g, o) + o.wd * w)
    new = w + o.momentum * (old - step) - step
    kept["m"] = old - o.learning_rate * (plain(g, o) + o.wd * new)
    return new


def adam(w: Vector, g: Vector, kept: Kept, o: Any) -> Vector:
    g = inside(w, g, o)
    m, v = mean(kept, "m", o.beta1, g), mean(kept, "v", o.beta2, g**2)
    rate = o.learning_rate * math.sqrt(1 - o.beta2**o.t) / (1 - o.beta1**o.t)
    return w - rate * m / (np.sqrt(v) + o.epsilon)


def adamw(w: Vector, g: Vector, kept: Kept, o: Any) -> Vector:
    g = plain(g, o)
    m = mean(kept, "m", o.beta1, g) / (1 - o.beta1**o.t)
    v = mean(kept, "v", o.beta2, g**2) / (1 - o.beta2**o.t)
    w = w - o.learning_rate * o.wd * w
    return w - o.learning_rate * m / (np.sqrt(v) + o.epsilon)


def rmsprop(w: Vector, g: Vector, kept: Kept, o: Any) -> Vector:
    g = inside(w, g, o)
    n = mean(kept, "n", o.gamma1, g**2)
    if o.centered:
        variance = n - mean(kept, "m", o.gamma1, g) ** 2
        step = o.learning_rate * g / np.sqrt(variance + o.epsilon)
        kept["d"] = o.gamma2 * kept.get("d", 0.0) - step
        return clip(w + kept["d"], o.clip_weights)
    return clip(w - o.learning_rate * g / np.sqrt(n + o.epsilon), o.clip_weights)


def adagrad(w: Vector, g: Vector, kept: Kept, o: Any) -> Vector:
    g = plain(g, o)
    kept["h"] = kept.get("h", 0.0) + g**2
    return w - o.learning_rate * (g / np.sqrt(kept["h"] + o.eps) + o.wd * w)


def ftrl(w: Vector, g: Vector, kept: Kept, o: Any) -> Vector:
    """Return the weights by algorithm 1 of "Ad Click Prediction: a View from the Trenches"."""
    g, n, rate = plain(g, o), kept.get("n", np.zeros(w.size)), o.learning_rate
    sigma = (np.sqrt(n + g**2) - np.sqrt(n)) / rate
    z = kept["z"] = kept.get("z", 0.0) + g - sigma * w
    n = kept["n"] = n + g**2
    shrunk = -(z - np.sign(z) * o.lamda1) / ((o.beta + np.sqrt(n)) / rate + o.wd)
    return np.where(np.abs(z) <= o.lamda1, 0.0, shrunk)


def signum(w: Vector, g: Vector, kept: Kept, o: Any) -> Vector:
    if o.momentum == 0:
        return (1 - o.learning_rate * o.wd) * w - o.learning_rate * np.sign(g)
    m = mean(kept, "m", o.momentum, plain(g, o) + o.wd * w)
    return (1 - o.learning_rate * o.wd_lh) * w - o.learning_rate * np.sign(m)


def test(w: Vector, g: Vector, kept: Kept, o: Any) -> Vector:
    return w + o.rescale_grad * g


def adamax(w: Vector, g: Vector, kept: Kept, o: Any) -> Vector:
    """Return the weights by algorithm 2 of "Adam: A Method for Stochastic Optimization"."""
    g = inside(w, g, o)
    m = mean(kept, "m", o.beta1, g)
    u = kept["u"] = np.maximum(o.beta2 * kept.get("u", 0.0), np.abs(g))
    return w - o.learning_rate / (1 - o.beta1**o.t) * m / u


def nadam(w: Vector, g: Vector, kept: Kept, o: Any) -> Vector:
    g = inside(w, g, o)
    now, ahead = (
        o.beta1 * (1 - 0.5 * 0.96 ** (step * o.schedule_decay)) for step in (o.t, o.t + 1)
    )
    kept["p"] = kept.get("p", 1.0) * now
    m = mean(kept, "m", o.beta1, g) / (1 - kept["p"] * ahead)
    v = mean(kept, "v", o.beta2, g**2) / (1 - o.beta2**o.t)
    step = (1 - now) * g / (1 - kept["p"]) + ahead * m
    return w - o.learning_rate * step / (np.sqrt(v) + o.epsilon)


def adadelta(w: Vector, g: Vector, kept: Kept, o: Any) -> Vector:
    g = plain(g, o)
    n = mean(kept, "n", o.rho, g**2)
    change = np.sqrt(kept.get("d", 0.0) + o.epsilon) / np.sqrt(n + o.epsilon) * g
    mean(kept, "d", o.rho, change**2)
    return w - change - o.wd * w


def ftml(w: Vector, g: Vector, kept: Kept, o: Any) -> Vector:
    """Return the weights by algorithm 1 of "Follow the Moving Leader in Deep Learning"."""
    g = inside(w, g, o)
    v = mean(kept, "v", o.beta2, g**2) / (1 - o.beta2**o.t)
    d = (1 - o.beta1**o.t) / o.learning_rate * (np.sqrt(v) + o.epsilon)
    sigma = d - o.beta1 * kept.get("d", 0.0)
    z = o.beta1 * kept.get("z", 0.0) + (1 - o.beta1) * g - sigma * w
    kept.update(d=d, z=z)
    return -z / d


def lion(w: Vector, g: Vector, kept: Kept, o: Any) -> Vector:
    """Return the weights by algorithm 2 of "Symbolic Discovery of Optimization Algorithms"."""
    g, m = plain(g, o), kept.get("m", 0.0)
    update = np.sign(o.beta1 * m + (1 - o.beta1) * g)
    kept["m"] = o.beta2 * m + (1 - o.beta2) * g
    return w - o.learning_rate * (update + o.wd * w)


def lars(w: Vector, g: Vector, kept: Kept, o: Any) -> Vector:
    """Return the weights by algorithm 1 of "Large Batch Training of Convolutional Networks"."""
    of_w, of_g = np.linalg.norm(w), np.linalg.norm(o.rescale_grad * g)
    local = o.eta * of_w / (of_g + o.wd * of_w + o.eps) if of_w > 0 and of_g > 0 else 1.0
    m = o.momentum * kept.get("m", 0.0) + o.learning_rate * local * (plain(g, o) + o.wd * w)
    kept["m"] = m
    return w - m


def lamb(w: Vector, g: Vector, kept: Kept, o: Any) -> Vector:
    """Return the weights by algorithm 2 of "Large Batch Optimization for Deep Learning"."""
    g = plain(g, o)
    m, v = mean(kept, "m", o.beta1, g), mean(kept, "v", o.beta2, g**2)
    if o.bias_correction:
        m, v = m / (1 - o.beta1**o.t), v / (1 - o.beta2**o.t)
    direction = m / (np.sqrt(v) + o.epsilon) + o.wd * w
    least, most = (o.lower_bound or 0.0), (o.upper_bound or np.inf)
    of_w, of_d = min(max(np.linalg.norm(w), least), most), np.linalg.norm(direction)
    return w - o.learning_rate * (of_w / of_d if of_w > 0 and of_d > 0 else 1.0) * direction


# A collector of tests would take a function of that name in a test's module.
MODELS: dict[str, Model] = {
    "sgd": sgd,
    "nag": nag,
    "adam": adam,
    "adamw": adamw,
    "rmsprop": rmsprop,
    "adagrad": adagrad,
    "ftrl": ftrl,
    "signum": signum,
    "test": test,
    "adamax": adamax,
    "nadam": nadam,
    "adadelta": adadelta,
    "ftml": ftml,
    "lion": lion,
    "lars": lars,
    "lamb": lamb,
}


class Trajectory:
    """The weights of a model, step by step.

    Parameters
    ----------
    name : str
        Name of the optimizer.
    settings : dict
        Arguments that are not the defaults.
    first : ndarray
        Weights before the first step.
    lr_mult, wd_mult : float
        Factors of the key.
    """

    def __init__(
        self,
        name: str,
        settings: dict[str, Any],
        first: Vector,
        *,
        lr_mult: float = 1.0,
        wd_mult: float = 1.0,
    ) -> None:
        self.weights = first.astype(np.float64)
        self._model = MODELS[name]
        self._kept: Kept = {}
        self._numbers = SimpleNamespace(**{**COMMON, **DEFAULTS[name], **settings}, t=0)
        self._numbers.learning_rate *= lr_mult
        self._numbers.wd *= wd_mult

    def step(self, gradient: Vector) -> Vector:
        """Return the weights after one more step."""
        self._numbers.t += 1
        given = gradient.astype(np.float64)
        self.weights = self._model(self.weights, given, self._kept, self._numbers)
        return self.weights
