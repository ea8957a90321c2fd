"""`Basis`: what powersgd keeps of a key, equal on all ranks: its last Q, and its launches."""

from __future__ import annotations

from collections.abc import Sequence

from ncclkv.compress.powersgd import PowerSGD
from ncclkv.kernels.base import Array


class Basis:
    """The matrix Q with which the next sum of a key begins.

    Parameters
    ----------
    key : int or str
    shape : sequence of int
        Of the key.

    Attributes
    ----------
    launches : int
        Count of the sums of the key, those that were not compressed included.
    q : ndarray of float32, shape (k, n), or None
        The sum of all Q of the last launch; None before a first one.

    Examples
    --------
    >>> basis, codec = Basis("weight", (64, 32)), PowerSGD(start_powerSGD_iter=1)
    >>> basis.is_due(codec)
    False
    >>> basis.launches += 1
    >>> basis.is_due(codec), basis.first(codec).shape
    (True, (1, 32))
    """

    def __init__(self, key: int | str, shape: Sequence[int]) -> None:
        self._key = key
        self._shape = shape
        self.launches = 0
        self.q: Array | None = None

    def is_due(self, codec: PowerSGD) -> bool:
        """Return whether the next sum is compressed."""
        return self.launches >= int(codec.parameters["start_powerSGD_iter"])

    def first(self, codec: PowerSGD) -> Array:
        """Return a new array, the Q with which a sum begins."""
        warm = codec.parameters["warm_start"]
        shape = codec.narrow_shapes(self._shape)[1]
        if self.q is None or self.q.shape != shape or not warm:
            return codec.basis(self._key, self._shape, 0 if warm else self.launches)
        kept: Array = self.q.copy()
        return kept

    def keep(self, codec: PowerSGD, q: Array) -> None:
        """Keep the sum of all Q for the next sum."""
        self.q = q.copy()
        codec.renew(self.q, self._key, self._shape, self.launches)

    def reset(self) -> None:
        """Begin again, as for a new key."""
        self.launches, self.q = 0, None
