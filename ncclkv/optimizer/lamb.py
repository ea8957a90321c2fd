"""LAMB: layer-wise adaptive moments."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

from ncclkv.arguments import check_flag
from ncclkv.optimizer.base import Checks, Optimizer, State
from ncclkv.optimizer.common import COMMON, Common, optimizer_arguments
from ncclkv.optimizer.hyperparameters import MOMENTS, clipping_bound
from ncclkv.typing import Key

if TYPE_CHECKING:
    from typing_extensions import Unpack


class LAMB(Optimizer):
    """Adam with a learning rate for each key that is adapted to norms, as MXNet computes it.

    ::

        g = clamp(rescale_grad * gradient, -clip_gradient, clip_gradient)
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g * g
        direction = (m / (1 - beta1**t)) / (sqrt(v / (1 - beta2**t)) + epsilon) + wd * weight
        norm = clamp(|weight|, lower_bound, upper_bound)
        weight -= learning_rate * norm / |direction| * direction

    The factor of the learning rate is 1 if either norm is 0.  Without `bias_correction` the
    direction is that of m and v themselves.  The arithmetic is that of ``lamb_update_phase1`` and
    ``lamb_update_phase2`` of MXNet 1.9.1; the method is of You and others, 2019.  Norms are of all
    elements of a key, summed in float64 (MXNet: float32).  An element whose m is 0 has no direction
    but its decay, also with an epsilon of 0 (MXNet: NaN).

    A store updates at the next pull, wait or flush after the push, when all norms are complete.

    Parameters
    ----------
    learning_rate : float, optional
        At least 0; 0.001 by default.
    beta1, beta2 : float
        Decay of the means of g and of its square; at least 0 and below 1.
    epsilon : float
        At least 0.
    lower_bound, upper_bound : float, optional
        Bounds, above 0, of the norm of the weights.
    bias_correction : bool
    **common
        ``wd``, ``rescale_grad``, ``clip_gradient`` and more, as for `Optimizer`.

    Raises
    ------
    UsageError
        When an argument is not such a value.

    Examples
    --------
    >>> LAMB(learning_rate=0.01, wd=0.01)  # doctest: +NORMALIZE_WHITESPACE
    LAMB(learning_rate=0.01, beta1=0.9, beta2=0.999, epsilon=1e-06, lower_bound=None,
         upper_bound=None, bias_correction=True, wd=0.01, rescale_grad=1.0, clip_gradient=None)
    """

    name = program = "lamb"
    default_learning_rate = 0.001
    counted = True
    hyperparameters = (
        "learning_rate",
        "beta1",
        "beta2",
        "epsilon",
        "lower_bound",
        "upper_bound",
        "bias_correction",
        *COMMON,
    )
    checks: ClassVar[Checks] = {
        **MOMENTS,
        "lower_bound": clipping_bound,
        "upper_bound": clipping_bound,
    }
    states = State("mean"), State("variance")

    @optimizer_arguments("LAMB")
    def __init__(
        self,
        *,
        learning_rate: float | None = None,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-6,
        lower_bound: float | None = None,
        upper_bound: float | None = None,
        bias_correction: bool = True,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(learning_rate=learning_rate, **common)
        self.beta1 = beta1
        self.beta2 = beta2
        self.epsilon = epsilon
        self.lower_bound = lower_bound
        self.upper_bound = upper_bound
        self._bias_correction = check_flag("bias_correction", bias_correction)

    @property
    def bias_correction(self) -> bool:
        """The flag as given; read-only."""
        return self._bias_correction

    def scalars(self, key: Key, count: int) -> tuple[float, ...]:
        """Return the learning rate, the rates of the means, both bounds, and the common scalars."""
        beta1, beta2 = self.beta1, self.beta2
        corrected, root = 1.0, 1.0
        if self.bias_correction:
            corrected, root = 1 / (1 - beta1**count), 1 / math.sqrt(1 - beta2**count)
        means = beta1, 1 - beta1, beta2, 1 - beta2
        bounds = (-1.0 if x is None else x for x in (self.lower_bound, self.upper_bound))
        direction = self.epsilon, corrected, root
        return self.learning_rate_of(key), *means, *direction, *bounds, *self.common_scalars(key)
