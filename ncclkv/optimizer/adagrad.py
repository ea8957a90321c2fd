"""AdaGrad."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from ncclkv.optimizer.base import Checks, Optimizer, State
from ncclkv.optimizer.common import COMMON, Common, optimizer_arguments
from ncclkv.optimizer.hyperparameters import not_negative
from ncclkv.typing import Key

if TYPE_CHECKING:
    from typing_extensions import Unpack


class AdaGrad(Optimizer):
    """AdaGrad, as MXNet computes it.

    ::

        g = clamp(rescale_grad * gradient, -clip_gradient, clip_gradient)
        h += g * g
        weight -= learning_rate * (g / sqrt(h + eps) + wd * weight)

    The arithmetic is that of MXNet's class ``AdaGrad`` for dense gradients (MXNet
    ``python/mxnet/optimizer/optimizer.py``): Duchi, Hazan and Singer, 2011, with decoupled
    decay.  torch adds its epsilon outside of the root.

    Parameters
    ----------
    learning_rate : float, optional
        At least 0; 0.01 by default.
    eps : float
        At least 0.
    **common
        ``wd``, ``rescale_grad``, ``clip_gradient`` and more, as for `Optimizer`.

    Raises
    ------
    UsageError
        When an argument is not such a value.

    Examples
    --------
    >>> AdaGrad(learning_rate=0.1)
    AdaGrad(learning_rate=0.1, eps=1e-07, wd=0.0, rescale_grad=1.0, clip_gradient=None)
    """

    name = program = "adagrad"
    hyperparameters = ("learning_rate", "eps", *COMMON)
    checks: ClassVar[Checks] = {"eps": not_negative}
    states = (State("history"),)

    @optimizer_arguments("AdaGrad")
    def __init__(
        self, *, learning_rate: float | None = None, eps: float = 1e-7, **common: Unpack[Common]
    ) -> None:
        super().__init__(learning_rate=learning_rate, **common)
        self.eps = eps

    def scalars(self, key: Key, count: int) -> tuple[float, ...]:
        """Return the learning rate, eps and the common scalars."""
        return self.learning_rate_of(key), self.eps, *self.common_scalars(key)
