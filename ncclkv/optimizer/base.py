"""`Optimizer`: the base class of optimizers; `State`: an array that an optimizer keeps."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple, TypeAlias, cast

import numpy as np

from ncclkv.arrays.dtypes import is_low_precision
from ncclkv.optimizer.numbers import checked_factors, clipping_bound, finite, not_negative
from ncclkv.typing import Key


class State(NamedTuple):
    """An array that an optimizer keeps for each array of weights.

    Attributes
    ----------
    name : str
        An identifier; it names the array in checkpoints.
    dtype : str
        Name of a dtype, or ``"compute"``: float32 for 16-bit weights, else the weights' dtype.
    init : str
        First elements: ``"zeros"``, or ``"weights"`` for a copy of the weights.
    """

    name: str
    dtype: str = "compute"
    init: str = "zeros"

    def dtype_for(self, weights: np.dtype[Any]) -> np.dtype[Any]:
        """Return the dtype of the state of such weights."""
        if self.dtype != "compute":
            return np.dtype(self.dtype)
        return np.dtype(np.float32) if is_low_precision(weights) else weights


_FACTORS = ("lr_mult", "wd_mult")

Checks: TypeAlias = Mapping[str, Callable[[str, Any], Any]]
"""Checks by attribute: ``check(name, value)`` returns the value to assign, or raises UsageError."""

_CHECKS: Checks = {
    "learning_rate": not_negative,
    "wd": not_negative,
    "rescale_grad": finite,
    "clip_gradient": clipping_bound,
    **dict.fromkeys(_FACTORS, checked_factors),
}


class Optimizer(ABC):
    """An optimizer that a store runs; names are MXNet's.

    A subclass declares its `program`, its `states`, and in `scalars` the numbers of a key's update.
    The store allocates the states, counts the updates and calls the kernels.  16-bit weights are
    updated in float32, with float32 states, and rounded once an update.

    Parameters
    ----------
    learning_rate : float
        At least 0.
    wd : float
        Weight decay, at least 0.
    rescale_grad : float
        Factor of every gradient, applied first.
    clip_gradient : float, optional
        Bound, above 0, on the absolute value of each element of the rescaled gradient.

    Attributes
    ----------
    learning_rate, wd, rescale_grad, clip_gradient
        As given; an assignment takes effect at the next push.  All ranks must assign equal numbers.
    lr_mult, wd_mult : dict
        Factors of the learning rate and of the weight decay by key; 1 for other keys.  Assigned
        dicts are copied.  The next push checks items that were put into the dicts.
    name : str
        Name of the optimizer in `create` and in checkpoints.
    hyperparameters : tuple of str
        Names of the arguments, in the order of ``repr``.
    program : str
        Name of the arithmetic in `ncclkv.kernels.programs.PROGRAMS`.
    checks : mapping of str to callable
        `Checks` of the attributes that a subclass adds.
    counted : bool
        Whether `scalars` reads its `count`.  If not, pushes with equal numbers reuse a table.
    norms : bool
        Whether an update needs the norms of each key's weights and gradient.  No store computes
        norms yet.

    Raises
    ------
    UsageError
        When an argument, or a value assigned to an attribute, is not such a number.
    """

    name: ClassVar[str]
    hyperparameters: ClassVar[tuple[str, ...]]
    program: ClassVar[str]
    checks: ClassVar[Checks] = {}
    counted: ClassVar[bool] = False
    norms: ClassVar[bool] = False

    learning_rate: float
    wd: float
    rescale_grad: float
    clip_gradient: float | None
    lr_mult: dict[Key, float]
    wd_mult: dict[Key, float]
    _assignments = 0

    def __init__(
        self,
        *,
        learning_rate: float,
        wd: float = 0.0,
        rescale_grad: float = 1.0,
        clip_gradient: float | None = None,
    ) -> None:
        self.learning_rate = learning_rate
        self.wd = wd
        self.rescale_grad = rescale_grad
        self.clip_gradient = clip_gradient
        self.lr_mult = {}
        self.wd_mult = {}

    def __setattr__(self, name: str, value: Any) -> None:
        """Assign a checked value, and count the assignment for `version`."""
        check = _CHECKS.get(name) or self.checks.get(name)
        super().__setattr__(name, value if check is None else check(name, value))
        self.__dict__["_assignments"] = self._assignments + 1

    def __repr__(self) -> str:
        numbers = [f"{name}={getattr(self, name)}" for name in self.hyperparameters]
        return f"{type(self).__name__}({', '.join(numbers)})"

    @property
    def version(self) -> tuple[int, int, int]:
        """A value that is new after an assignment to an attribute, or a change in a factor dict."""
        # The dicts are `Factors`, which count their changes.
        lr_mult, wd_mult = self.__dict__["lr_mult"], self.__dict__["wd_mult"]
        return self._assignments, lr_mult.version, wd_mult.version

    def set_learning_rate(self, learning_rate: float) -> None:
        """Assign to `learning_rate`."""
        self.learning_rate = learning_rate

    def set_lr_mult(self, factors: Mapping[Key, float]) -> None:
        """Replace the factors of the learning rate by key.

        Raises
        ------
        UsageError
            When `factors` is not a mapping of keys to finite numbers.
        """
        self.lr_mult = cast("dict[Key, float]", factors)

    def set_wd_mult(self, factors: Mapping[Key, float]) -> None:
        """Replace the factors of the weight decay by key.

        Raises
        ------
        UsageError
            When `factors` is not a mapping of keys to finite numbers.
        """
        self.wd_mult = cast("dict[Key, float]", factors)

    @property
    @abstractmethod
    def states(self) -> tuple[State, ...]:
        """The arrays kept for each array of weights, in the order of the program."""

    @abstractmethod
    def scalars(self, key: Key, count: int) -> tuple[float, ...]:
        """Return the row of numbers with which the program updates a key.

        Keys with equal factors and counts must have equal rows: one row is computed for them.

        Parameters
        ----------
        key : int or str
            Used only to look up its factors, by `learning_rate_of` and `wd_of`.
        count : int
            Number of this update of the key, from 1.
        """

    def config(self) -> dict[str, Any]:
        """Return all numbers that an update depends on, as plain values that ranks can compare.

        Raises
        ------
        UsageError
            When `lr_mult` or `wd_mult` has an item that is not a finite number.
        """
        numbers = {name: getattr(self, name) for name in self.hyperparameters}
        factors = {name: dict(self.__dict__[name].frozen(name)) for name in _FACTORS}
        return {"name": self.name, **numbers, **factors}

    def learning_rate_of(self, key: Key) -> float:
        """Return the learning rate of a key."""
        return self.learning_rate * self.lr_mult.get(key, 1.0)

    def wd_of(self, key: Key) -> float:
        """Return the weight decay of a key."""
        return self.wd * self.wd_mult.get(key, 1.0)

    def common_scalars(self, key: Key) -> tuple[float, float, float]:
        """Return the last numbers of a row, in the order of ``kernels/programs/gradient.h``.

        Returns
        -------
        wd, rescale_grad, clip_gradient : float
            The bound is -1 if there is none.
        """
        clip = self.clip_gradient
        return self.wd_of(key), self.rescale_grad, -1.0 if clip is None else clip

    def snapshot(self) -> Optimizer:
        """Return a copy that later changes do not affect.

        Snapshots between two changes of a factor share their dicts.

        Raises
        ------
        UsageError
            As for `config`.
        """
        made = copy.copy(self)
        for name in _FACTORS:
            made.__dict__[name] = self.__dict__[name].frozen(name)
        return made
