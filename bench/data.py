"""Values whose sums are exact, different for every element, key, rank and step.

A value is ``pattern[element] + 2**rank + step + key``, with the last three wrapped to stay small.
Sums over ranks, and SGD with a momentum of 1 and a learning rate of 1/2, are then multiples of 1/2
that float32 holds exactly.  Powers of two distinguish a rank that was added twice from two ranks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from ncclkv.comm.types import Buffer

# A prime: data shifted by a power of two are wrong data.
_PERIOD = 65521
_HIGHEST = 60
_RANKS, _STEPS, _KEYS = 8, 101, 29

LEARNING_RATE = 0.5
MOMENTUM = 1.0


def addend(rank: int, step: int, key: int = 0) -> int:
    """Return the integer that a rank adds to the pattern in a step, for one key."""
    return (1 << rank % _RANKS) + step % _STEPS + key % _KEYS


def total(size: int, step: int, key: int = 0) -> int:
    """Return the sum over all ranks of their addends."""
    return sum(addend(rank, step, key) for rank in range(size))


class Pattern:
    """The term of the values that differs from element to element, in one memory.

    Parameters
    ----------
    xp : module
    tile : ndarray, optional
        Values in place of the module's, as many.
    """

    def __init__(self, xp: Any, tile: Buffer | None = None) -> None:
        if tile is None:
            random = np.random.default_rng(0).integers(0, _HIGHEST, _PERIOD, endpoint=True)
            tile = random.astype(np.float32)
        self._tile = xp.asarray(tile)
        self._xp = xp

    def fill(self, array: Buffer, offset: float, start: int = 0) -> None:
        """Write the pattern from element `start` on, plus `offset`."""
        for view, tile in self._ranges(array, start):
            self._xp.add(tile, np.float32(offset), out=view)

    def wrong(self, array: Buffer, scale: float, offset: float, start: int = 0) -> int:
        """Return the count of elements that differ from ``scale * pattern + offset``."""
        count = 0
        for view, tile in self._ranges(array, start):
            expected = tile * np.float32(scale) + np.float32(offset)
            count += int(self._xp.count_nonzero(view != expected))
        return count

    def _ranges(self, array: Buffer, start: int) -> list[tuple[Buffer, Buffer]]:
        """Return `array` in as few ranges as possible, each with its range of the pattern."""
        flat = array.reshape(-1)
        start %= _PERIOD
        head = min(flat.size, _PERIOD - start)
        rows = (flat.size - head) // _PERIOD
        tail = head + rows * _PERIOD
        ranges = [(flat[:head], self._tile[start : start + head])]
        if rows:
            ranges.append((flat[head:tail].reshape(rows, _PERIOD), self._tile))
        if tail < flat.size:
            ranges.append((flat[tail:], self._tile[: flat.size - tail]))
        return ranges


class Signs:
    """Values that are 1 or -1, of which a code of few bits sends all: sums of codes are exact.

    Parameters
    ----------
    xp : module
    every : int
        One of as many elements is not 0; a codec that sends more of them sends all, too.
    """

    def __init__(self, xp: Any, every: int = 1) -> None:
        tile = 2 * np.random.default_rng(1).integers(0, 2, _PERIOD) - 1
        tile[np.arange(_PERIOD) % every != 0] = 0
        self._pattern = Pattern(xp, tile.astype(np.float32))

    def fill(self, arrays: Sequence[Buffer], step: int) -> None:
        """Write the values of a step, the same on all ranks."""
        for key, array in enumerate(arrays):
            self._pattern.fill(array, 0, start=key + step)

    def wrong(self, arrays: Sequence[Buffer], step: int, size: int) -> int:
        """Return the count of elements that differ from the sum over `size` ranks."""
        pairs = enumerate(arrays)
        return sum(self._pattern.wrong(array, size, 0, start=key + step) for key, array in pairs)


class Products:
    """Matrices of rank 1 whose elements are 1 or -1: products of narrow matrices stand for them.

    The rows are the same in all steps, as the matrices of a training change little: a Q that has
    little of a row makes roundings large.  A product is rounded, so a sum may differ a little.

    Parameters
    ----------
    xp : module
    """

    TOLERANCE = 1e-4

    def __init__(self, xp: Any) -> None:
        self._xp = xp
        self._signs = Signs(xp)

    def _factors(self, array: Buffer, step: int) -> tuple[Buffer, Buffer, Buffer]:
        """Return an array as a matrix, and the column and the row of which it is the product."""
        matrix = array.reshape((len(array) if array.ndim else 1, math.prod(array.shape[1:])))
        column, row = (self._xp.empty(count, np.float32) for count in matrix.shape)
        self._signs.fill([column], step)
        self._signs.fill([row], 0)
        return matrix, column[:, None], row

    def fill(self, arrays: Sequence[Buffer], step: int) -> None:
        """Write the values of a step, the same on all ranks."""
        for array in arrays:
            matrix, column, row = self._factors(array, step)
            self._xp.multiply(column, row, out=matrix)

    def wrong(self, arrays: Sequence[Buffer], step: int, size: int) -> int:
        """Return the count of elements that differ from the sum over `size` ranks."""
        count = 0
        for array in arrays:
            matrix, column, row = self._factors(array, step)
            error = abs(matrix - size * column * row)
            count += int(self._xp.count_nonzero(error > self.TOLERANCE * size))
        return count


class Expected(Protocol):
    """Expected results, as a scale and an offset of the pattern."""

    def advance(self, step: int) -> None:
        """Apply the data of `step`."""

    def of(self, key: int) -> tuple[float, float]:
        """Return the scale and the offset of a key's values."""


class Sum:
    """Values that are replaced by the sum over ranks."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._step = 0

    def advance(self, step: int) -> None:
        self._step = step

    def of(self, key: int) -> tuple[float, float]:
        return self._size, total(self._size, self._step, key)


class Descent:
    """Weights that start at 0, after steps of SGD with momentum.

    The momentum is 1, so momenta are sums of gradients, and weights are sums of momenta.  The part
    of the gradients that is the same in all steps is counted, the rest is summed.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._momentum = [0, 0]
        self._weight = [0, 0]

    def advance(self, step: int) -> None:
        self._momentum[0] += 1
        self._momentum[1] += total(self._size, step)
        self._weight[0] += self._momentum[0]
        self._weight[1] += self._momentum[1]

    def of(self, key: int) -> tuple[float, float]:
        count, sums = self._weight
        own = count * self._size * (key % _KEYS)
        return -LEARNING_RATE * count * self._size, -LEARNING_RATE * (sums + own)
