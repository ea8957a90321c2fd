"""The base class of optimizers: what each one declares."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar, NamedTuple, cast

import numpy as np

from ncclkv.arrays.dtypes import is_low_precision
from ncclkv.optimizer.factors import checked_factors
from ncclkv.optimizer.numbers import clipping_bound, finite
from ncclkv.typing import Key


class State(NamedTuple):
    """An array that an optimizer keeps for each array of weights.

    Attributes
    ----------
    name : str
        An identifier; it names the array in checkpoints.
    dtype : str
        ``"compute"`` is float32 for 16-bit weights and else the weights' dtype; or the name of a
        dtype.
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

_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "learning_rate": partial(finite, least=0.0),
    "wd": partial(finite, least=0.0),
    "rescale_grad": finite,
    "clip_gradient": clipping_bound,
    **dict.fromkeys(_FACTORS, checked_factors),
}
"""Checks by attribute: ``check(name, value)`` returns the value that an assignment keeps."""


class Optimizer(ABC):
    """A rule that updates weights by their gradients; names are MXNet's.

    A subclass declares its `program`, its `states`, and in `scalars` the numbers of one key's
    update.  The store makes the arrays, counts the updates and calls the kernels.

    Parameters
    ----------
    learning_rate : float
        At least 0.
    wd : float
        Weight decay, at least 0.
    rescale_grad : float
        Factor of every gradient, applied before anything else.
    clip_gradient : float, optional
        Bound, above 0, on the absolute value of each element of the rescaled gradient.

    Attributes
    ----------
    learning_rate, wd, rescale_grad, clip_gradient
        As given; an assignment takes effect at the next update.  Give every rank the same.
    lr_mult, wd_mult : dict
        Factors by key of the learning rate and of the weight decay; 1 for keys not named.  Assigned
        dicts are copied.  The next push checks items that were put into them.
    program : str
        Name of the arithmetic in `ncclkv.kernels.programs.PROGRAMS`.
    counted : bool
        Whether `scalars` reads its `count`.  False spares a table of scalars at each push.
    norms : bool
        Whether an update needs the norms of each key's weights and gradient.  No store computes
        them yet.

    Raises
    ------
    UsageError
        When an argument, or what is assigned to an attribute, is not such a number.
    """

    program: ClassVar[str]
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
        """Assign a checked value, and count the assignment: see `version`."""
        check = _CHECKS.get(name)
        super().__setattr__(name, value if check is None else check(name, value))
        self.__dict__["_assignments"] = self._assignments + 1

    @property
    def version(self) -> tuple[int, int, int]:
        """A value that differs after each assignment, and each change of `lr_mult` or `wd_mult`."""
        # The dicts are `Factors`, which count their changes.
        lr_mult, wd_mult = self.__dict__["lr_mult"], self.__dict__["wd_mult"]
        return self._assignments, lr_mult.version, wd_mult.version

    def set_learning_rate(self, learning_rate: float) -> None:
        """Set the learning rate, as assigning to `learning_rate` does."""
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
        """The arrays that belong to each array of weights, in the order of the program."""

    @abstractmethod
    def scalars(self, key: Key, count: int) -> tuple[float, ...]:
        """Return the row of numbers with which the program updates a key.

        Keys with equal factors and counts must have equal rows: one is computed for all of them.

        Parameters
        ----------
        key : int or str
            Read only to look up its factors, as `learning_rate_of` and `wd_of` do.
        count : int
            The number of this update of the key, from 1.
        """

    @abstractmethod
    def config(self) -> dict[str, Any]:
        """Return everything that decides an update, as plain values that ranks can compare.

        Raises
        ------
        UsageError
            When `lr_mult` or `wd_mult` has an item that is not a finite number.
        """

    def learning_rate_of(self, key: Key) -> float:
        """Return the learning rate of a key."""
        return self.learning_rate * self.lr_mult.get(key, 1.0)

    def wd_of(self, key: Key) -> float:
        """Return the weight decay of a key."""
        return self.wd * self.wd_mult.get(key, 1.0)

    def factors(self) -> dict[str, dict[Key, float]]:
        """Return `lr_mult` and `wd_mult` by name, checked and copied, for `config`."""
        return {name: dict(self.__dict__[name].frozen(name)) for name in _FACTORS}

    def snapshot(self) -> Optimizer:
        """Return a copy that later changes leave as it is.

        Snapshots taken between two changes of the factors share their dicts.

        Raises
        ------
        UsageError
            As of `config`.
        """
        made = copy.copy(self)
        for name in _FACTORS:
            made.__dict__[name] = self.__dict__[name].frozen(name)
        return made
