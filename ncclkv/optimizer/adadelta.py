"""AdaDelta."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from ncclkv.optimizer.base import Checks, Optimizer, State
from ncclkv.optimizer.common import COMMON, Common, optimizer_arguments
from ncclkv.optimizer.hyperparameters import fraction, not_negative
from ncclkv.typing import Key

if TYPE_CHECKING:
    from typing_extensions import Unpack


class AdaDelta(Optimizer):
    """AdaDelta, as MXNet computes it.

    ::

        g = clamp(rescale_grad * gradient, -clip_gradient, clip_gradient)
        n = rho * n + (1 - rho) * g * g
        c = sqrt(d + epsilon) / sqrt(n + epsilon) * g
        d = rho * d + (1 - rho) * c * c
        weight -= c + wd * weight

    The arithmetic is that of MXNet's class ``AdaDelta`` (MXNet
    ``python/mxnet/optimizer/optimizer.py``): Zeiler, 2012, with decay.  The learning rate has
    no effect, as in MXNet.

    Parameters
    ----------
    rho : float
        Decay of the mean squares; at least 0 and below 1.
    epsilon : float
        At least 0.
    learning_rate : float, optional
        At least 0; without effect.
    **common
        ``wd``, ``rescale_grad``, ``clip_gradient`` and more, as for `Optimizer`.

    Raises
    ------
    UsageError
        When an argument is not such a value.

    Examples
    --------
    >>> AdaDelta()  # doctest: +NORMALIZE_WHITESPACE
    AdaDelta(rho=0.9, epsilon=1e-05, learning_rate=0.01, wd=0.0, rescale_grad=1.0,
             clip_gradient=None)
    """

    name = program = "adadelta"
    hyperparameters = ("rho", "epsilon", "learning_rate", *COMMON)
    checks: ClassVar[Checks] = {"rho": fraction, "epsilon": not_negative}
    states = State("mean_square"), State("mean_square_delta")

    @optimizer_arguments("AdaDelta")
    def __init__(
        self,
        *,
        rho: float = 0.9,
        epsilon: float = 1e-5,
        learning_rate: float | None = None,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(learning_rate=learning_rate, **common)
        self.rho = rho
        self.epsilon = epsilon

    def scalars(self, key: Key, count: int) -> tuple[float, ...]:
        """Return rho, 1 - rho, epsilon and the common scalars."""
        return self.rho, 1 - self.rho, self.epsilon, *self.common_scalars(key)
