"""The base class of optimizers: what each one declares."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np

from ncclkv.arrays.dtypes import is_low_precision
from ncclkv.optimizer.factors import Factors, checked_factors
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
    wd, rescale_grad, clip_gradient
        As given; an assignment takes effect at the next update.  Give every rank the same.
    lr_mult, wd_mult : dict
        Factors by key of the learning rate and of the weight decay; 1 for keys not named.  The next
        push checks items that were put into them.
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
        """Assign, and count the assignment: see `version`."""
        super().__setattr__(name, value)
        self.__dict__["_assignments"] = self._assignments + 1

    @property
    def version(self) -> tuple[int, int, int]:
        """A value that differs after each assignment, and each change of `lr_mult` or `wd_mult`."""
        return self._assignments, self._lr_mult.version, self._wd_mult.version

    @property
    def learning_rate(self) -> float:
        """The learning rate; a new one takes effect at the next update."""
        return self._learning_rate

    @learning_rate.setter
    def learning_rate(self, learning_rate: float) -> None:
        self._learning_rate = finite("learning_rate", learning_rate, least=0.0)

    @property
    def wd(self) -> float:
        """The weight decay."""
        return self._wd

    @wd.setter
    def wd(self, wd: float) -> None:
        self._wd = finite("wd", wd, least=0.0)

    @property
    def rescale_grad(self) -> float:
        """The factor of every gradient."""
        return self._rescale_grad

    @rescale_grad.setter
    def rescale_grad(self, rescale_grad: float) -> None:
        self._rescale_grad = finite("rescale_grad", rescale_grad)

    @property
    def clip_gradient(self) -> float | None:
        """The bound on elements of the rescaled gradient, or None."""
        return self._clip_gradient

    @clip_gradient.setter
    def clip_gradient(self, clip_gradient: float | None) -> None:
        self._clip_gradient = clipping_bound(clip_gradient)

    @property
    def lr_mult(self) -> dict[Key, float]:
        """The factors of the learning rate by key; assigned ones are copied."""
        return self._lr_mult

    @lr_mult.setter
    def lr_mult(self, factors: dict[Key, float]) -> None:
        self.set_lr_mult(factors)

    @property
    def wd_mult(self) -> dict[Key, float]:
        """The factors of the weight decay by key; assigned ones are copied."""
        return self._wd_mult

    @wd_mult.setter
    def wd_mult(self, factors: dict[Key, float]) -> None:
        self.set_wd_mult(factors)

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
        self._lr_mult = Factors(checked_factors("lr_mult", factors))

    def set_wd_mult(self, factors: Mapping[Key, float]) -> None:
        """Replace the factors of the weight decay by key.

        Raises
        ------
        UsageError
            When `factors` is not a mapping of keys to finite numbers.
        """
        self._wd_mult = Factors(checked_factors("wd_mult", factors))

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
        return self.learning_rate * self._lr_mult.get(key, 1.0)

    def wd_of(self, key: Key) -> float:
        """Return the weight decay of a key."""
        return self.wd * self._wd_mult.get(key, 1.0)

    def factors(self) -> dict[str, dict[Key, float]]:
        """Return `lr_mult` and `wd_mult` by name, checked and copied, for `config`."""
        return {
            "lr_mult": dict(self._lr_mult.frozen("lr_mult")),
            "wd_mult": dict(self._wd_mult.frozen("wd_mult")),
        }

    def snapshot(self) -> Optimizer:
        """Return a copy that later changes leave as it is.

        Snapshots taken between two changes of the factors share their dicts.

        Raises
        ------
        UsageError
            As of `config`.
        """
        made = copy.copy(self)
        made.__dict__["_lr_mult"] = self._lr_mult.frozen("lr_mult")
        made.__dict__["_wd_mult"] = self._wd_mult.frozen("wd_mult")
        return made
