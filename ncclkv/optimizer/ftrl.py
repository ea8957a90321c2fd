"""Follow the regularized leader."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from ncclkv.optimizer.base import Checks, Optimizer, State
from ncclkv.optimizer.common import COMMON, Common, optimizer_arguments
from ncclkv.optimizer.hyperparameters import not_negative
from ncclkv.typing import Key

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Ftrl(Optimizer):
    """Follow the regularized leader, per coordinate, as MXNet computes it.

    ::

        g = clamp(rescale_grad * gradient, -clip_gradient, clip_gradient)
        z += g - (sqrt(n + g * g) - sqrt(n)) * weight / learning_rate;  n += g * g
        weight = (sign(z) * lamda1 - z) / ((beta + sqrt(n)) / learning_rate + wd)
        weight = 0, if abs(z) <= lamda1

    The arithmetic is that of ``ftrl_update`` (MXNet ``src/operator/optimizer_op-inl.h``):
    McMahan and others, "Ad Click Prediction: a View from the Trenches", 2013.  The first update
    replaces the initial weights, as in MXNet: z and n begin with 0.  A learning rate of 0
    changes neither weights nor states; MXNet then divides by 0.

    Parameters
    ----------
    lamda1 : float
        Factor of the L1 regularization, at least 0; `wd` is that of L2.
    learning_rate : float, optional
        At least 0; 0.1 by default.
    beta : float
        At least 0.
    **common
        ``wd``, ``rescale_grad``, ``clip_gradient`` and more, as for `Optimizer`.

    Raises
    ------
    UsageError
        When an argument is not such a value.

    Examples
    --------
    >>> Ftrl()  # doctest: +NORMALIZE_WHITESPACE
    Ftrl(lamda1=0.01, learning_rate=0.1, beta=1.0, wd=0.0, rescale_grad=1.0, clip_gradient=None)
    """

    name = program = "ftrl"
    default_learning_rate = 0.1
    hyperparameters = ("lamda1", "learning_rate", "beta", *COMMON)
    checks: ClassVar[Checks] = {"lamda1": not_negative, "beta": not_negative}
    states = State("z"), State("n")

    @optimizer_arguments("Ftrl")
    def __init__(
        self,
        *,
        lamda1: float = 0.01,
        learning_rate: float | None = None,
        beta: float = 1.0,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(learning_rate=learning_rate, **common)
        self.lamda1 = lamda1
        self.beta = beta

    def scalars(self, key: Key, count: int) -> tuple[float, ...]:
        """Return the learning rate, lamda1, beta and the common scalars."""
        return self.learning_rate_of(key), self.lamda1, self.beta, *self.common_scalars(key)
