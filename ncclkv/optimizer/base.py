"""What every optimizer has in common."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from ncclkv.arguments import check_length
from ncclkv.errors import UsageError
from ncclkv.kernels.base import Array, Kernels, Segments
from ncclkv.typing import Key

# What `float` takes all the same: texts, and NumPy's complex numbers without their imaginary part.
_NO_NUMBERS = (str, bytes, np.complexfloating)


def finite(name: str, value: Any, *, least: float | None = None) -> float:
    """Return `value` as a float, or say what is wrong with the argument `name`.

    Raises
    ------
    UsageError
        When `value` is not a finite real number, or is less than `least`.

    Examples
    --------
    >>> finite("wd", 1, least=0.0)
    1.0
    """
    check_length(name, value)
    try:
        number = float("nan") if isinstance(value, _NO_NUMBERS) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = float("nan")
    if not math.isfinite(number):
        raise UsageError(f"{name} is {value!r}; give a finite number")
    if least is not None and number < least:
        raise UsageError(f"{name} is {value!r}; give a number of at least {least:g}")
    return number


class Optimizer(ABC):
    """A rule that folds a gradient into a weight; names are MXNet's.

    A subclass says in `state_count` how many arrays it keeps for each weight array (of the
    weights' length, zero at first; float32 where weights are 16-bit floats), and updates flat
    ranges of weights in `update`.

    Parameters
    ----------
    learning_rate : float
        At least 0.
    wd : float
        Weight decay, at least 0.
    rescale_grad : float
        Every gradient is multiplied by this before anything else.
    clip_gradient : float, optional
        Bound, above 0, on the absolute value of each element of the rescaled gradient.

    Attributes
    ----------
    wd, rescale_grad, clip_gradient
        As given; assigning to them takes effect at the next update.  Give every rank the same.
    capturable : bool
        Whether all that `update` does is to call kernels, with `learning_rate` as it is and without
        a new array: then a captured step can be replayed with another one.  Each class says so for
        itself.
    lr_mult, wd_mult : dict
        Factors by key of the learning rate and of the weight decay; 1 for keys not named.  Items
        put into them are checked by the next push.

    Raises
    ------
    UsageError
        When an argument, or what is assigned to an attribute, is not such a number.
    """

    capturable: ClassVar[bool] = False

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
        """What every gradient is multiplied by."""
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
        self._clip_gradient = _bound(clip_gradient)

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
        self._lr_mult = checked_factors("lr_mult", factors)

    def set_wd_mult(self, factors: Mapping[Key, float]) -> None:
        """Replace the factors of the weight decay by key.

        Raises
        ------
        UsageError
            When `factors` is not a mapping of keys to finite numbers.
        """
        self._wd_mult = checked_factors("wd_mult", factors)

    @property
    @abstractmethod
    def state_count(self) -> int:
        """How many state arrays belong to each weight array."""

    @abstractmethod
    def update(
        self,
        kernels: Kernels,
        weights: Array,
        gradients: Array,
        states: Sequence[Array],
        segments: Segments | None = None,
    ) -> None:
        """Fold `gradients` into `weights` and `states`, in place.

        Parameters
        ----------
        kernels : Kernels
            Those of the device that holds the arrays.
        weights, gradients : ndarray, shape (n,)
            Of one dtype; gradients are left unchanged.
        states : sequence of ndarray, shape (n,)
            `state_count` of them.
        segments : Segments, optional
            The ranges to update, with factors of the learning rate and of the weight decay; by
            default all, with none.
        """

    @abstractmethod
    def config(self) -> dict[str, Any]:
        """Everything that decides an update, as plain values that ranks can compare.

        Raises
        ------
        UsageError
            When `lr_mult` or `wd_mult` has been given an item that is not a finite number.
        """


def _bound(clip_gradient: float | None) -> float | None:
    """Check a clipping bound; zero would silently train nothing."""
    if clip_gradient is None:
        return None
    bound = finite("clip_gradient", clip_gradient)
    if bound <= 0:
        raise UsageError(
            f"clip_gradient is {clip_gradient!r}; give a bound above 0, or None to clip nothing"
        )
    return bound


def checked_factors(name: str, factors: Mapping[Key, float]) -> dict[Key, float]:
    """Check factors by key; the dict returned is a new one."""
    if not isinstance(factors, Mapping):
        raise UsageError(f"{name} is a {type(factors).__name__}; give a dict of factors by key")
    for key in factors:
        check_length(f"a key of {name}", key)
    return {key: finite(f"{name} of key {key!r}", factor) for key, factor in factors.items()}
