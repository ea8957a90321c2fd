"""FTML: follow the moving leader."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ncclkv.optimizer.base import Optimizer, State
from ncclkv.optimizer.common import COMMON, Common, optimizer_arguments
from ncclkv.optimizer.hyperparameters import MOMENTS
from ncclkv.typing import Key

if TYPE_CHECKING:
    from typing_extensions import Unpack


class FTML(Optimizer):
    """Follow the moving leader, as MXNet computes it.

    ::

        g = clamp(rescale_grad * gradient + wd * weight, -clip_gradient, clip_gradient)
        v = beta2 * v + (1 - beta2) * g * g
        e = (1 - beta1**t) / learning_rate * (sqrt(v / (1 - beta2**t)) + epsilon)
        z = beta1 * z + (1 - beta1) * g - (e - beta1 * d) * weight
        weight = -z / e;  d = e

    The arithmetic at update t of the key is that of ``ftml_update`` (MXNet
    ``src/operator/optimizer_op-inl.h``): Zheng and Kwok, 2017.  A learning rate of 0 changes
    neither weights nor states; MXNet then divides by 0.

    Parameters
    ----------
    learning_rate : float, optional
        At least 0; 0.01 by default.
    beta1, beta2 : float
        Decay of the means; at least 0 and below 1.
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
    >>> FTML()  # doctest: +NORMALIZE_WHITESPACE
    FTML(learning_rate=0.01, beta1=0.6, beta2=0.999, epsilon=1e-08, wd=0.0, rescale_grad=1.0,
         clip_gradient=None)
    """

    name = program = "ftml"
    hyperparameters = ("learning_rate", "beta1", "beta2", "epsilon", *COMMON)
    checks = MOMENTS
    counted = True
    states = State("d"), State("v"), State("z")

    @optimizer_arguments("FTML")
    def __init__(
        self,
        *,
        learning_rate: float | None = None,
        beta1: float = 0.6,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(learning_rate=learning_rate, **common)
        self.beta1 = beta1
        self.beta2 = beta2
        self.epsilon = epsilon

    def scalars(self, key: Key, count: int) -> tuple[float, ...]:
        """Return the learning rate, the scalars of the means, and the common scalars."""
        beta1, beta2 = self.beta1, self.beta2
        means = beta1, 1 - beta1, beta2, 1 - beta2, self.epsilon
        biases = 1 - beta1**count, 1 - beta2**count
        return self.learning_rate_of(key), *means, *biases, *self.common_scalars(key)
