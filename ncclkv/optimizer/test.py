"""MXNet's optimizer for tests of stores."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ncclkv.optimizer.base import Optimizer, State
from ncclkv.optimizer.common import COMMON, Common, optimizer_arguments
from ncclkv.typing import Key

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Test(Optimizer):
    """Addition of the rescaled gradient, as MXNet's optimizer for tests of stores.

    ::

        weight += rescale_grad * gradient

    The arithmetic and the state, a copy of the weights, are those of MXNet 1.9's class ``Test``
    (MXNet ``python/mxnet/optimizer/optimizer.py``).  The learning rate, the decay and the bound
    have no effect.

    Parameters
    ----------
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
    >>> Test(rescale_grad=0.5)
    Test(learning_rate=0.01, wd=0.0, rescale_grad=0.5, clip_gradient=None)
    """

    # pytest would collect the class.
    __test__ = False

    name = program = "test"
    hyperparameters = ("learning_rate", *COMMON)
    states = (State("copy"),)

    @optimizer_arguments("Test")
    def __init__(self, *, learning_rate: float | None = None, **common: Unpack[Common]) -> None:
        super().__init__(learning_rate=learning_rate, **common)

    def scalars(self, key: Key, count: int) -> tuple[float, ...]:
        """Return the common scalars."""
        return self.common_scalars(key)
