"""`Residuals`: what the gradients of each key have not sent yet, of each sender on this rank."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from ncclkv.kernels.base import Array, Kernels
from ncclkv.table.registry import Key, KeySpec

_FLOAT32 = np.dtype(np.float32)


class Residuals:
    """The residuals of a store: they belong to keys, so they stay when keys move to other buckets.

    Parameters
    ----------
    kernels : Kernels
        Allocates them.

    Attributes
    ----------
    skip : array of int32, shape (1,), or None
        During a launch of which the device decides whether it is skipped: a value that is not 0
        then, when all residuals stay as they are.
    """

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels
        self._of_keys: dict[Key, list[Array]] = {}
        self.skip: Array | None = None

    def of(self, spec: KeySpec, sender: int = 0) -> Array:
        """Return the residual of a sender: float32, flat, and zero at first.

        Parameters
        ----------
        spec : KeySpec
        sender : int
            The position of an array among those that one push gives for the key, if each of them
            sends.
        """
        found = self._of_keys.setdefault(spec.key, [])
        while len(found) <= sender:
            found.append(self._kernels.zeros(spec.size, _FLOAT32))
        return found[sender]

    def all_of(self, key: Key) -> Sequence[Array]:
        """Return the residuals of all senders of a key on this rank."""
        return self._of_keys.get(key, ())

    def reset(self, key: Key) -> None:
        """Set the residuals of a key to zero."""
        for residual in self._of_keys.get(key, ()):
            self._kernels.fill(residual, 0)

    def drop(self, keys: Iterable[Key]) -> None:
        """Forget the residuals of keys that are not encoded any more."""
        for key in keys:
            self._of_keys.pop(key, None)

    @property
    def nbytes(self) -> int:
        """Bytes of all residuals on this rank."""
        return sum(each.nbytes for found in self._of_keys.values() for each in found)
