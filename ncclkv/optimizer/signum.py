"""Signum: steps by the sign of the momentum."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from ncclkv.optimizer.base import Checks, Optimizer, State
from ncclkv.optimizer.common import COMMON, Common, optimizer_arguments
from ncclkv.optimizer.hyperparameters import not_negative
from ncclkv.typing import Key

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Signum(Optimizer):
    """Steps by the sign of the momentum, or of the gradient, as MXNet computes them.

    ::

        momentum = 0:  weight = (1 - learning_rate * (wd + wd_lh)) * weight
                                - learning_rate * sign(gradient)
        otherwise:     g = clamp(rescale_grad * gradient, -clip_gradient, clip_gradient)
                       m = momentum * m - (1 - momentum) * (wd * weight + g)
                       weight = (1 - learning_rate * wd_lh) * weight + learning_rate * sign(m)

    The arithmetic is that of ``signum_update`` and ``signsgd_update`` (MXNet
    ``src/operator/optimizer_op-inl.h``): Bernstein and others, 2018.  Without a momentum
    `rescale_grad` and `clip_gradient` have no effect, as in MXNet, which then refuses `wd_lh`.
    The sign of NaN is NaN here, and 0 in MXNet.

    Parameters
    ----------
    learning_rate : float, optional
        At least 0; 0.01 by default.
    momentum : float
        At least 0.
    wd_lh : float
        Decoupled weight decay, at least 0, after Loshchilov and Hutter, 2017.
    **common
        ``wd``, ``rescale_grad``, ``clip_gradient`` and more, as for `Optimizer`.

    Raises
    ------
    UsageError
        When an argument is not such a value.

    Examples
    --------
    >>> Signum(wd_lh=0.1)  # doctest: +NORMALIZE_WHITESPACE
    Signum(learning_rate=0.01, momentum=0.9, wd_lh=0.1, wd=0.0, rescale_grad=1.0,
           clip_gradient=None)
    """

    name = program = "signum"
    hyperparameters = ("learning_rate", "momentum", "wd_lh", *COMMON)
    checks: ClassVar[Checks] = {"wd_lh": not_negative}

    @optimizer_arguments("Signum")
    def __init__(
        self,
        *,
        learning_rate: float | None = None,
        momentum: float = 0.9,
        wd_lh: float = 0.0,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(learning_rate=learning_rate, **common)
        self.wd_lh = wd_lh
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
        """Return learning rate, momentum, the factors of the weight, and the common scalars."""
        rate, wd, share = self.learning_rate_of(key), self.wd_of(key), 1 - self.momentum
        decoupled = self.wd_lh if self.momentum else wd + self.wd_lh
        factors = share * wd, 1 - rate * decoupled
        return rate, self.momentum, share, *factors, *self.common_scalars(key)
