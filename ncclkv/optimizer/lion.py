"""Lion: steps by the sign of an interpolated momentum."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from ncclkv.optimizer.base import Checks, Optimizer, State
from ncclkv.optimizer.common import COMMON, Common, optimizer_arguments
from ncclkv.optimizer.hyperparameters import fraction
from ncclkv.typing import Key

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Lion(Optimizer):
    """Lion, as its paper defines it.

    ::

        g = clamp(rescale_grad * gradient, -clip_gradient, clip_gradient)
        s = sign(beta1 * m + (1 - beta1) * g)
        m = beta2 * m + (1 - beta2) * g
        weight -= learning_rate * (s + wd * weight)

    The arithmetic and the betas are those of algorithm 2 in "Symbolic Discovery of Optimization
    Algorithms" (Chen and others, 2023).  The paper takes a learning rate 3 to 10 times smaller
    than AdamW's, and a decay larger by the same factor.  The sign of NaN is NaN.

    Parameters
    ----------
    learning_rate : float, optional
        At least 0; 1e-4 by default.
    beta1, beta2 : float
        Decay of the momentum in a step, and in the state; at least 0 and below 1.
    **common
        ``wd``, ``rescale_grad``, ``clip_gradient`` and more, as for `Optimizer`.

    Raises
    ------
    UsageError
        When an argument is not such a value.

    Examples
    --------
    >>> Lion(wd=0.1)  # doctest: +NORMALIZE_WHITESPACE
    Lion(learning_rate=0.0001, beta1=0.9, beta2=0.99, wd=0.1, rescale_grad=1.0,
         clip_gradient=None)
    """

    name = program = "lion"
    default_learning_rate = 1e-4
    hyperparameters = ("learning_rate", "beta1", "beta2", *COMMON)
    checks: ClassVar[Checks] = {"beta1": fraction, "beta2": fraction}
    states = (State("momentum"),)

    @optimizer_arguments("Lion")
    def __init__(
        self,
        *,
        learning_rate: float | None = None,
        beta1: float = 0.9,
        beta2: float = 0.99,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(learning_rate=learning_rate, **common)
        self.beta1 = beta1
        self.beta2 = beta2

    def scalars(self, key: Key, count: int) -> tuple[float, ...]:
        """Return the learning rate, the betas and the common scalars."""
        betas = self.beta1, 1 - self.beta1, self.beta2, 1 - self.beta2
        return self.learning_rate_of(key), *betas, *self.common_scalars(key)
