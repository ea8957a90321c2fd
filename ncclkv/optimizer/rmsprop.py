"""RMSProp."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from ncclkv.arguments import check_flag
from ncclkv.optimizer.base import Checks, Optimizer, State
from ncclkv.optimizer.common import COMMON, Common, optimizer_arguments
from ncclkv.optimizer.hyperparameters import clipping_bound, fraction, not_negative
from ncclkv.typing import Key

if TYPE_CHECKING:
    from typing_extensions import Unpack


class RMSProp(Optimizer):
    """RMSProp, plain or centered, as MXNet computes it.

    ::

        g = clamp(rescale_grad * gradient + wd * weight, -clip_gradient, clip_gradient)
        n = gamma1 * n + (1 - gamma1) * g * g
        plain:     weight -= learning_rate * g / sqrt(n + epsilon)
        centered:  m = gamma1 * m + (1 - gamma1) * g
                   d = gamma2 * d - learning_rate * g / sqrt(n - m * m + epsilon)
                   weight += d
        weight = clamp(weight, -clip_weights, clip_weights)

    The arithmetic is that of ``rmsprop_update`` and ``rmspropalex_update`` (MXNet
    ``src/operator/optimizer_op-inl.h``): Tieleman and Hinton, 2012, and Graves, 2013, equations
    38 to 45.  A difference ``n - m * m`` that rounding makes negative counts as 0; MXNet takes
    the root of the negative difference.

    Parameters
    ----------
    learning_rate : float, optional
        At least 0; 0.001 by default.
    gamma1 : float
        Decay of the means; at least 0 and below 1.
    gamma2 : float
        Momentum of the changes, if centered; at least 0.
    epsilon : float
        At least 0.
    centered : bool
        True if the variance of the gradient replaces its mean square; read-only.
    clip_weights : float, optional
        Bound, above 0, on the absolute value of each weight.
    **common
        ``wd``, ``rescale_grad``, ``clip_gradient`` and more, as for `Optimizer`.

    Raises
    ------
    UsageError
        When an argument is not such a value, or `centered` is not a bool.

    Examples
    --------
    >>> RMSProp(centered=True)  # doctest: +NORMALIZE_WHITESPACE
    RMSProp(learning_rate=0.001, gamma1=0.9, gamma2=0.9, epsilon=1e-08, centered=True,
            clip_weights=None, wd=0.0, rescale_grad=1.0, clip_gradient=None)
    """

    name = program = "rmsprop"
    default_learning_rate = 0.001
    hyperparameters = (
        "learning_rate",
        "gamma1",
        "gamma2",
        "epsilon",
        "centered",
        "clip_weights",
        *COMMON,
    )
    checks: ClassVar[Checks] = {
        "gamma1": fraction,
        "gamma2": not_negative,
        "epsilon": not_negative,
        "clip_weights": clipping_bound,
    }

    @optimizer_arguments("RMSProp")
    def __init__(
        self,
        *,
        learning_rate: float | None = None,
        gamma1: float = 0.9,
        gamma2: float = 0.9,
        epsilon: float = 1e-8,
        centered: bool = False,
        clip_weights: float | None = None,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(learning_rate=learning_rate, **common)
        self.gamma1 = gamma1
        self.gamma2 = gamma2
        self.epsilon = epsilon
        self.clip_weights = clip_weights
        self._centered = check_flag("centered", centered)

    @property
    def centered(self) -> bool:
        """The flag of the centered form; read-only, since the states depend on it."""
        return self._centered

    @property
    def states(self) -> tuple[State, ...]:
        """The mean square; if centered also the mean, and the last change of the weight."""
        square = State("mean_square")
        return (square, State("mean"), State("delta")) if self.centered else (square,)

    def scalars(self, key: Key, count: int) -> tuple[float, ...]:
        """Return learning rate, gammas, epsilon, the bound, and the common scalars."""
        bound = -1.0 if self.clip_weights is None else self.clip_weights
        gammas = self.gamma1, 1 - self.gamma1, self.gamma2
        rate = self.learning_rate_of(key)
        return rate, *gammas, self.epsilon, bound, *self.common_scalars(key)
