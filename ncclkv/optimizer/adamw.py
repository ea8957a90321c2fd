"""AdamW: Adam with decoupled weight decay."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ncclkv.optimizer.base import Optimizer, State
from ncclkv.optimizer.common import COMMON, Common, optimizer_arguments
from ncclkv.optimizer.hyperparameters import MOMENTS
from ncclkv.typing import Key

if TYPE_CHECKING:
    from typing_extensions import Unpack


class AdamW(Optimizer):
    """Adam with decoupled weight decay, as torch computes it.

    ::

        g = clamp(rescale_grad * gradient, -clip_gradient, clip_gradient)
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g * g
        weight *= 1 - learning_rate * wd
        weight -= learning_rate / (1 - beta1**t) * m / (sqrt(v / (1 - beta2**t)) + epsilon)

    The formula and the defaults are those of ``torch.optim.AdamW`` (algorithm 2 of Loshchilov
    and Hutter, 2017, has one more factor).  The program is that of `Adam`, with both
    corrections of bias in the learning rate and in epsilon.

    Parameters
    ----------
    learning_rate : float, optional
        At least 0; 0.001 by default.
    beta1, beta2 : float
        Decay of the means of g and of its square; at least 0 and below 1.
    epsilon : float
        At least 0.
    **common
        ``wd`` (0.01 by default), ``rescale_grad`` and ``clip_gradient``, as for `Optimizer`.

    Raises
    ------
    UsageError
        When an argument is not such a value.

    Examples
    --------
    >>> AdamW(learning_rate=0.01)  # doctest: +NORMALIZE_WHITESPACE
    AdamW(learning_rate=0.01, beta1=0.9, beta2=0.999, epsilon=1e-08, wd=0.01, rescale_grad=1.0,
          clip_gradient=None)
    """

    name = "adamw"
    default_learning_rate = 0.001
    program = "adam"
    hyperparameters = ("learning_rate", "beta1", "beta2", "epsilon", *COMMON)
    checks = MOMENTS
    counted = True
    states = State("mean"), State("variance")

    @optimizer_arguments("AdamW")
    def __init__(
        self,
        *,
        learning_rate: float | None = None,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        **common: Unpack[Common],
    ) -> None:
        common.setdefault("wd", 0.01)
        super().__init__(learning_rate=learning_rate, **common)
        self.beta1 = beta1
        self.beta2 = beta2
        self.epsilon = epsilon

    def scalars(self, key: Key, count: int) -> tuple[float, ...]:
        """Return the corrected learning rate, the rates of the means, and the common scalars."""
        beta1, beta2, rate = self.beta1, self.beta2, self.learning_rate_of(key)
        wd, *common = self.common_scalars(key)
        # sqrt(v / c) + epsilon = (sqrt(v) + epsilon * sqrt(c)) / sqrt(c)
        root = math.sqrt(1 - beta2**count)
        corrected = rate * root / (1 - beta1**count)
        means = beta1, 1 - beta1, beta2, 1 - beta2
        return corrected, *means, self.epsilon * root, 1 - rate * wd, 0.0, *common
