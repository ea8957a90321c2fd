"""LARS: layer-wise adaptive rate scaling."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from ncclkv.arguments import check_flag
from ncclkv.optimizer.base import Checks, Optimizer, State
from ncclkv.optimizer.common import COMMON, Common, optimizer_arguments
from ncclkv.optimizer.hyperparameters import not_negative
from ncclkv.typing import Key

if TYPE_CHECKING:
    from typing_extensions import Unpack

_NOT_ADAPTED = ("gamma", "beta", "bias")
"""Ends of the names of keys whose learning rate MXNet leaves as it is."""


class LARS(Optimizer):
    """SGD with a learning rate for each key that is adapted to norms, as MXNet computes it.

    ::

        rate = learning_rate * eta * |weight| / (rescale_grad * |gradient| + wd * |weight| + eps)
        g = clamp(rescale_grad * gradient, -clip_gradient, clip_gradient) + wd * weight
        momentum = 0:  weight -= rate * g
        otherwise:     m = momentum * m - rate * g;  weight += m

    The rate is ``learning_rate`` for keys whose name ends in ``gamma``, ``beta`` or ``bias``, if a
    norm is 0, and if that of the gradients is at most ``2**-75``: MXNet's float32 has no such norm.
    The name of an integer key is that of `param_idx2name`.  The arithmetic is that of
    ``multi_lars`` and ``sgd_mom_update`` of MXNet 1.9.1; the method is of You, Gitman and Ginsburg,
    2017.  Norms are of all elements of a key, summed in float64 (MXNet: float32).  With master
    copies they are norms of the masters (MXNet: of the 16-bit weights).  As in MXNet, `wd_mult` is
    0 for names that do not end in ``_weight``.

    A store updates at the next pull, wait or flush after the push, when all norms are complete.

    Parameters
    ----------
    learning_rate : float, optional
        At least 0; 0.01 by default.
    momentum : float
        At least 0.
    eta, eps : float
        At least 0.
    momentum_correction : bool
        Whether an update under an `lr_scheduler` multiplies its momentum by the learning rate over
        that of the update before.  An assigned learning rate changes no momentum.
    **common
        ``wd``, ``rescale_grad``, ``clip_gradient`` and more, as for `Optimizer`.

    Raises
    ------
    UsageError
        When an argument is not such a value.

    Examples
    --------
    >>> LARS(learning_rate=0.1, momentum=0.9)  # doctest: +NORMALIZE_WHITESPACE
    LARS(learning_rate=0.1, momentum=0.9, eta=0.001, eps=0.0, momentum_correction=True, wd=0.0,
         rescale_grad=1.0, clip_gradient=None)
    """

    name = program = "lars"
    decayed_names = ("_weight",)
    hyperparameters = (
        "learning_rate",
        "momentum",
        "eta",
        "eps",
        "momentum_correction",
        *COMMON,
    )
    checks: ClassVar[Checks] = {"eta": not_negative, "eps": not_negative}

    @optimizer_arguments("LARS")
    def __init__(
        self,
        *,
        learning_rate: float | None = None,
        momentum: float = 0.0,
        eta: float = 0.001,
        eps: float = 0.0,
        momentum_correction: bool = True,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(learning_rate=learning_rate, **common)
        self._momentum = not_negative("momentum", momentum)
        self._momentum_correction = check_flag("momentum_correction", momentum_correction)
        self.eta = eta
        self.eps = eps

    @property
    def momentum(self) -> float:
        """The momentum; read-only, since a store allocates a state only if it is not 0."""
        return self._momentum

    @property
    def momentum_correction(self) -> bool:
        """The flag as given; read-only."""
        return self._momentum_correction

    @property
    def states(self) -> tuple[State, ...]:
        """The momentum; no state if it is 0."""
        return (State("momentum"),) if self.momentum else ()

    def rates_at(self, num_update: int) -> tuple[float, float]:
        rate = self.rate_at(num_update)
        if not self.momentum_correction or num_update <= self.begin_num_update + 1:
            return rate, rate
        return rate, self.rate_at(num_update - 1)

    def factors_of(self, key: Key) -> tuple[float, ...]:
        """Return the factors of a key's rate and decay, and its eta: -1 if it is not adapted."""
        name = self.idx2name.get(key, "") if isinstance(key, int) else key
        return *super().factors_of(key), -1.0 if name.endswith(_NOT_ADAPTED) else self.eta

    def scalars(self, key: Key, count: int) -> tuple[float, ...]:
        """Return the learning rate, the corrected momentum, eta, eps and the common scalars."""
        momentum, before = self.momentum, self.rate_before
        if before:
            momentum *= self.learning_rate / before
        rate, eta = self.learning_rate_of(key), self.factors_of(key)[2]
        return rate, momentum, eta, self.eps, *self.common_scalars(key)
