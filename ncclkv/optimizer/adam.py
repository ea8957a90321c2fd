"""Adam."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ncclkv.optimizer.base import Optimizer, State
from ncclkv.optimizer.common import COMMON, Common, optimizer_arguments
from ncclkv.optimizer.hyperparameters import MOMENTS
from ncclkv.typing import Key

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Adam(Optimizer):
    """Adam, as MXNet computes it.

    ::

        g = clamp(rescale_grad * gradient + wd * weight, -clip_gradient, clip_gradient)
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g * g
        weight -= learning_rate * c * m / (sqrt(v) + epsilon)

    The correction of bias is ``c = sqrt(1 - beta2**t) / (1 - beta1**t)`` at update t of the
    key.  The arithmetic is that of ``adam_update`` (MXNet ``src/operator/optimizer_op-inl.h``).
    The paper (Kingma and Ba, 2014, section 2) has the form with this c, but no decay and no
    clipping.  torch adds epsilon after the correction of v, and has no clipping.
    Complex weights are updated as pairs of reals, as in torch.

    Parameters
    ----------
    learning_rate : float, optional
        At least 0; 0.001 by default.
    beta1, beta2 : float
        Decay of the means of g and of its square; at least 0 and below 1.
    epsilon : float
        At least 0.
    **common
        ``wd``, ``rescale_grad``, ``clip_gradient`` and more, as for `Optimizer`.

    Raises
    ------
    UsageError
        When an argument is not such a value.

    Examples
    --------
    >>> Adam(learning_rate=0.01)  # doctest: +NORMALIZE_WHITESPACE
    Adam(learning_rate=0.01, beta1=0.9, beta2=0.999, epsilon=1e-08, wd=0.0, rescale_grad=1.0,
         clip_gradient=None)
    """

    name = program = "adam"
    complex_weights = True
    default_learning_rate = 0.001
    hyperparameters = ("learning_rate", "beta1", "beta2", "epsilon", *COMMON)
    checks = MOMENTS
    counted = True
    states = State("mean"), State("variance")

    @optimizer_arguments("Adam")
    def __init__(
        self,
        *,
        learning_rate: float | None = None,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(learning_rate=learning_rate, **common)
        self.beta1 = beta1
        self.beta2 = beta2
        self.epsilon = epsilon

    def scalars(self, key: Key, count: int) -> tuple[float, ...]:
        """Return the corrected learning rate, the rates of the means, and the common scalars."""
        beta1, beta2 = self.beta1, self.beta2
        correction = math.sqrt(1 - beta2**count) / (1 - beta1**count)
        rate = self.learning_rate_of(key) * correction
        means = beta1, 1 - beta1, beta2, 1 - beta2
        return rate, *means, self.epsilon, 1.0, *self.common_scalars(key)
