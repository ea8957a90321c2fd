"""Nesterov's accelerated gradient."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ncclkv.optimizer.base import Optimizer, State
from ncclkv.optimizer.common import COMMON, Common, optimizer_arguments
from ncclkv.optimizer.hyperparameters import not_negative
from ncclkv.typing import Key

if TYPE_CHECKING:
    from typing_extensions import Unpack


class NAG(Optimizer):
    """Gradient descent with Nesterov's momentum, as MXNet computes it.

    ::

        g = clamp(rescale_grad * gradient, -clip_gradient, clip_gradient)
        d = learning_rate * (g + wd * weight)
        momentum = 0:  weight -= d
        otherwise:     old = momentum * m;  weight += (1 + momentum) * (old - d) - old
                       m = old - learning_rate * (g + wd * weight)

    The arithmetic is that of ``nag_mom_update`` and ``sgd_update`` (MXNet
    ``src/operator/optimizer_op-inl.h``).  The decay in m is that of the new weight, as in MXNet
    1.9, whose kernel writes the weight first; MXNet 2.0 decays the old one.

    Parameters
    ----------
    learning_rate : float, optional
        At least 0; 0.01 by default.
    momentum : float
        At least 0.
    **common
        ``wd``, ``rescale_grad``, ``clip_gradient`` and more, as for `Optimizer`.

    Raises
    ------
    UsageError
        When an argument is not such a value.

    Examples
    --------
    >>> NAG(learning_rate=0.1, momentum=0.9)
    NAG(learning_rate=0.1, momentum=0.9, wd=0.0, rescale_grad=1.0, clip_gradient=None)
    """

    name = program = "nag"
    hyperparameters = ("learning_rate", "momentum", *COMMON)

    @optimizer_arguments("NAG")
    def __init__(
        self, *, learning_rate: float | None = None, momentum: float = 0.0, **common: Unpack[Common]
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
        """Return learning rate, momentum, 1 + momentum, and the common scalars."""
        rate = self.learning_rate_of(key)
        return rate, self.momentum, 1 + self.momentum, *self.common_scalars(key)
