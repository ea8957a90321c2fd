"""`Basis`: what powersgd keeps of a key, equal on all ranks: its last Q, and its launches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ncclkv.compress.powersgd import PowerSGD
from ncclkv.kernels.base import Array, Kernels

_FLOAT32 = np.dtype(np.float32)
_NOTHING = np.empty((0, 0), np.float32)


class State(NamedTuple):
    """The launches of a key, and the sum of all Q of the last one, if any."""

    launches: int
    q: Array | None


class Basis:
    """The matrix Q with which the next sum of a key begins.

    Parameters
    ----------
    key : int or str
    shape : sequence of int
        Of the key.
    kernels : Kernels
        Allocates the matrices, and copies new ones into them.

    Attributes
    ----------
    launches : int
        Count of the sums of the key, those that were not compressed included.
    has_sum : bool
        Whether `q` is the sum of all Q of an earlier launch.
    q : array of float32, shape (k, n)
        The Q of the last launch, once `allocate` was called.  A program renews it, and then sets it
        to the sum of all Q.
    spare : array of float32, shape (k, n)
        A first Q of the key, which replaces rows of `q` that are lost.

    Examples
    --------
    >>> from ncclkv.kernels.host import HostKernels
    >>> basis, codec = Basis("weight", (64, 32), HostKernels()), PowerSGD(start_powerSGD_iter=1)
    >>> basis.is_due(codec)
    False
    >>> basis.launches += 1
    >>> basis.allocate(codec)
    >>> basis.is_due(codec), basis.q.shape, basis.has_sum
    (True, (1, 32), False)
    """

    def __init__(self, key: int | str, shape: Sequence[int], kernels: Kernels) -> None:
        self._key = key
        self._shape = shape
        self._kernels = kernels
        self._seed: int | None = None
        self.launches = 0
        self.has_sum = False
        self.q: Array = _NOTHING
        self.spare: Array = _NOTHING

    def is_due(self, codec: PowerSGD) -> bool:
        """Return whether the next sum is compressed."""
        return self.launches >= int(codec.parameters["start_powerSGD_iter"])

    def allocate(self, codec: PowerSGD) -> None:
        """Make the matrices that sums of a codec need, unless they are there.

        Matrices that are replaced are left as they are: a GPU may still read them.
        """
        shape, seed = codec.narrow_shapes(self._shape)[1], codec.parameters["random_seed"]
        if self.q.shape != shape:
            self.q, self.has_sum = self._kernels.empty(shape, _FLOAT32), False
        if self.spare.shape != shape or self._seed != seed:
            self.spare, self._seed = self._kernels.empty(shape, _FLOAT32), seed
            self._write(codec.basis(self._key, self._shape), self.spare)

    def begin(self, codec: PowerSGD) -> None:
        """Set `q` to the Q with which the sum of a launch begins, which then sets it to a sum."""
        warm = codec.parameters["warm_start"]
        if not (warm and self.has_sum):
            launch = 0 if warm else self.launches
            self._write(codec.basis(self._key, self._shape, launch), self.q)
        self.has_sum = True

    def restore(self, codec: PowerSGD, q: Array) -> None:
        """Take the sum of all Q of a launch, in host memory; one of another shape is dropped."""
        self.allocate(codec)
        if q.shape == self.q.shape:
            self._write(q, self.q)
            self.has_sum = True

    def state(self) -> State:
        """Return a copy of what the basis has; a launch may not be in flight."""
        return State(self.launches, self._kernels.copy(self.q) if self.has_sum else None)

    def reset(self, state: State | None = None) -> None:
        """Take a state again; by default that of a new key."""
        self.launches, q = state or State(0, None)
        self.has_sum = q is not None
        if q is not None:
            self._write(q, self.q)

    def _write(self, given: Array, matrix: Array) -> None:
        """Copy a matrix of the host, or of the same memory."""
        self._kernels.pack(given, matrix.reshape(-1))
