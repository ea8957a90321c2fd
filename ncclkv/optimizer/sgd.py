"""Stochastic gradient descent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ncclkv.optimizer.base import Optimizer, State
from ncclkv.optimizer.common import COMMON, Common, optimizer_arguments
from ncclkv.optimizer.hyperparameters import not_negative
from ncclkv.typing import Key

if TYPE_CHECKING:
    from typing_extensions import Unpack


class SGD(Optimizer):
    """Stochastic gradient descent with momentum and weight decay, as MXNet computes it.

    ::

        g = clamp(rescale_grad * gradient, -clip_gradient, clip_gradient) + wd * weight
        momentum = 0:  weight -= learning_rate * g
        otherwise:     m = momentum * m - learning_rate * g;  weight += m

    The arithmetic is that of ``sgd_update`` and ``sgd_mom_update`` (MXNet
    ``src/operator/optimizer_op-inl.h``).  The learning rate is inside the momentum, so its
    change affects only later gradients; torch multiplies the whole momentum by the learning
    rate.  Complex weights are updated as pairs of reals, as in torch, and so are they
    clipped.

    Parameters
    ----------
    learning_rate : float, optional
        At least 0.  The default is MXNet 1.9's, 0.01; MXNet 2.0's is 0.1.
    momentum : float
        At least 0.
    **common
        As for `Optimizer`.

    Raises
    ------
    UsageError
        When an argument is not such a value.

    Examples
    --------
    >>> SGD(learning_rate=0.1, momentum=0.9)
    SGD(learning_rate=0.1, momentum=0.9, wd=0.0, rescale_grad=1.0, clip_gradient=None)
    """

    name = program = "sgd"
    complex_weights = True
    hyperparameters = ("learning_rate", "momentum", *COMMON)

    # Keywords only: the first argument is learning_rate in MXNet 2.0, and momentum in 1.9.
    @optimizer_arguments("SGD")
    def __init__(
        self,
        *,
        learning_rate: float | None = None,
        momentum: float = 0.0,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(learning_rate=learning_rate, **common)
        self._momentum = not_negative("momentum", momentum)

    @property
    def momentum(self) -> float:
        """The momentum; read-only, since a store allocates a state only if it is not 0."""
        return self._momentum

    @property
    def states(self) -> tuple[State, ...]:
        """The momentum; no state if it is 0."""
        return (State("momentum"),) if self.momentum else ()

    def scalars(self, key: Key, count: int) -> tuple[float, ...]:
        """Return the learning rate, the momentum and the common scalars."""
        return self.learning_rate_of(key), self.momentum, *self.common_scalars(key)
