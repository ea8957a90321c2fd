"""Nadam: Adam with Nesterov's momentum."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, ClassVar

from ncclkv.optimizer.base import Checks, Optimizer, State
from ncclkv.optimizer.common import COMMON, Common, optimizer_arguments
from ncclkv.optimizer.hyperparameters import MOMENTS, not_negative
from ncclkv.typing import Key

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Nadam(Optimizer):
    """Adam with Nesterov's momentum, as MXNet computes it.

    ::

        g = clamp(rescale_grad * gradient + wd * weight, -clip_gradient, clip_gradient)
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g * g
        p(i) = beta1 * (1 - 0.96**(i * schedule_decay) / 2);  P(i) = p(1) * ... * p(i)
        s = (1 - p(t)) * g / (1 - P(t)) + p(t + 1) * m / (1 - P(t + 1))
        weight -= learning_rate * s / (sqrt(v / (1 - beta2**t)) + epsilon)

    The arithmetic at update t of the key is that of MXNet's class ``Nadam`` (MXNet
    ``python/mxnet/optimizer/optimizer.py``), after Dozat, 2015.  The product P is that of the
    key's own updates, as in the report.  MXNet keeps one product for all keys, so that it
    shrinks faster with several keys.

    Parameters
    ----------
    learning_rate : float, optional
        At least 0; 0.001 by default.
    beta1, beta2 : float
        Decay of the means of g and of its square; at least 0 and below 1.
    epsilon : float
        At least 0.
    schedule_decay : float
        Rate at which the momentum grows to beta1; at least 0.
    **common
        ``wd``, ``rescale_grad``, ``clip_gradient`` and more, as for `Optimizer`.

    Raises
    ------
    UsageError
        When an argument is not such a value.

    Examples
    --------
    >>> Nadam()  # doctest: +NORMALIZE_WHITESPACE
    Nadam(learning_rate=0.001, beta1=0.9, beta2=0.999, epsilon=1e-08, schedule_decay=0.004,
          wd=0.0, rescale_grad=1.0, clip_gradient=None)
    """

    name = program = "nadam"
    default_learning_rate = 0.001
    hyperparameters = ("learning_rate", "beta1", "beta2", "epsilon", "schedule_decay", *COMMON)
    checks: ClassVar[Checks] = {**MOMENTS, "schedule_decay": not_negative}
    counted = True
    states = State("mean"), State("variance")

    @optimizer_arguments("Nadam")
    def __init__(
        self,
        *,
        learning_rate: float | None = None,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        schedule_decay: float = 0.004,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(learning_rate=learning_rate, **common)
        self.beta1 = beta1
        self.beta2 = beta2
        self.epsilon = epsilon
        self.schedule_decay = schedule_decay

    def scalars(self, key: Key, count: int) -> tuple[float, ...]:
        """Return the learning rate, the scalars of both means, and the common scalars."""
        beta1, beta2 = self.beta1, self.beta2
        now, ahead = (_momentum(beta1, self.schedule_decay, each) for each in (count, count + 1))
        product = _product(beta1, self.schedule_decay, count)
        factors = (1 - now) / (1 - product), ahead / (1 - product * ahead)
        means = beta1, 1 - beta1, beta2, 1 - beta2
        step = *means, self.epsilon, *factors, 1 / (1 - beta2**count)
        return self.learning_rate_of(key), *step, *self.common_scalars(key)


def _momentum(beta1: float, decay: float, count: int) -> float:
    """Return the momentum of update `count`."""
    return beta1 * (1 - 0.5 * math.pow(0.96, count * decay))


@functools.lru_cache(maxsize=256)
def _product(beta1: float, decay: float, count: int) -> float:
    """Return the product of the momenta of updates 1 to `count`.

    The product is computed from the count, so that no checkpoint has to keep it.  The loop ends
    when ``1 - product`` is 1: after about 60 updates with the defaults.  The loop also ends when
    the momentum has grown to beta1.  So it makes at most some thousand steps for any
    hyperparameters.
    """
    product = 1.0
    for each in range(1, count + 1):
        momentum = _momentum(beta1, decay, each)
        if momentum == beta1:
            return product * math.pow(beta1, count - each + 1)
        product *= momentum
        if 1 - product == 1:
            break
    return product
