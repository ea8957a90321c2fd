"""AdaMax: Adam with the maximum of the gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from ncclkv.optimizer.base import Checks, Optimizer, State
from ncclkv.optimizer.common import COMMON, Common, optimizer_arguments
from ncclkv.optimizer.hyperparameters import fraction
from ncclkv.typing import Key

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Adamax(Optimizer):
    """AdaMax, as MXNet computes it.

    ::

        g = clamp(rescale_grad * gradient + wd * weight, -clip_gradient, clip_gradient)
        m = beta1 * m + (1 - beta1) * g
        u = max(beta2 * u, abs(g))
        weight -= learning_rate / (1 - beta1**t) * m / u, at update t of the key

    The arithmetic is that of MXNet's class ``Adamax`` (MXNet
    ``python/mxnet/optimizer/optimizer.py``): Kingma and Ba, 2014, section 7.  Where u is 0, the
    weight stays; MXNet then divides by 0.

    Parameters
    ----------
    learning_rate : float, optional
        At least 0; 0.002 by default.
    beta1, beta2 : float
        Decay of the mean of g and of its maximum; at least 0 and below 1.
    **common
        ``wd``, ``rescale_grad``, ``clip_gradient`` and more, as for `Optimizer`.

    Raises
    ------
    UsageError
        When an argument is not such a value.

    Examples
    --------
    >>> Adamax()  # doctest: +NORMALIZE_WHITESPACE
    Adamax(learning_rate=0.002, beta1=0.9, beta2=0.999, wd=0.0, rescale_grad=1.0,
           clip_gradient=None)
    """

    name = program = "adamax"
    default_learning_rate = 0.002
    hyperparameters = ("learning_rate", "beta1", "beta2", *COMMON)
    checks: ClassVar[Checks] = {"beta1": fraction, "beta2": fraction}
    counted = True
    states = State("mean"), State("maximum")

    @optimizer_arguments("Adamax")
    def __init__(
        self,
        *,
        learning_rate: float | None = None,
        beta1: float = 0.9,
        beta2: float = 0.999,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(learning_rate=learning_rate, **common)
        self.beta1 = beta1
        self.beta2 = beta2

    def scalars(self, key: Key, count: int) -> tuple[float, ...]:
        """Return the corrected learning rate, the decays, and the common scalars."""
        rate = self.learning_rate_of(key) / (1 - self.beta1**count)
        return rate, self.beta1, 1 - self.beta1, self.beta2, *self.common_scalars(key)
