"""`Quantiser`: the base of codecs whose codes stand for evenly spaced values around 0.

All but the arithmetic on an element follows from the bits of a code and from its level: packing in
MXNet's order, sums of levels, and the values of these sums.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from ncclkv.compress.declared import SCOPE, Parameter, finite
from ncclkv.kernels.base import Array, Arrays
from ncclkv.kernels.host import compiled
from ncclkv.kernels.host.chunks import ranges
from ncclkv.kernels.host.counts import (
    TILE,
    count_levels,
    pack_counts,
    packed_nbytes,
    scale_counts,
    unpack_counts,
)

WORD_BITS = 32
"""A payload is of MXNet's words: one has as many bits as a float32."""

WIDTHS = (2, 4, 8, 16)
"""Bits that a packed count may have."""


class Quantiser(ABC):
    """A codec of `bits` a gradient.

    Parameters
    ----------
    threshold : float
        As of the subclass, finite in float32.
    scope : str
        The sender: ``"rank"``, or the ranks of a node together (``"node"``).

    Attributes
    ----------
    bits : int
        Bits of a code.
    levels : sequence of int
        The level of each code, from 0 on.
    bound : float
        As of `Codec`.
    step : float
        The difference between the values of two neighbouring levels.
    declared : tuple of Parameter
    """

    name: str
    declared: ClassVar[tuple[Parameter, ...]] = (Parameter("threshold", 0.5, finite), SCOPE)
    keeps_residual = True
    dtypes = ("float32",)
    ops = ("sum", "avg")
    bits: ClassVar[int]
    levels: ClassVar[Sequence[int]]
    bound: float
    step: float

    def __init__(self, threshold: float = 0.5, scope: str = "rank") -> None:
        self.threshold = np.float32(threshold)
        self.parameters: Mapping[str, Any] = {
            "type": self.name,
            "threshold": threshold,
            "scope": scope,
        }
        self.unit = WORD_BITS // self.bits
        self.most_senders = ((1 << WIDTHS[-1]) - 1) // max(self.levels)
        self._of_bytes = levels_of_bytes(self.bits, self.levels)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.parameters})"

    @abstractmethod
    def advice(self, root_mean_square: float) -> str:
        """Return what to change, as of `Codec`."""

    @abstractmethod
    def quantise(self, sums: Array, bits: Array) -> None:
        """Choose the codes of a tile, and subtract from it what they send.

        Parameters
        ----------
        sums : ndarray of float32, shape (n,)
            Residuals with the gradients; they become the next residuals.
        bits : ndarray of bool, shape (n, bits)
            Receives the codes, the most significant bit first.
        """

    def pays(self, shape: Sequence[int], senders: int) -> bool:
        return True

    def nbytes(self, count: int) -> int:
        return -(-count // self.unit) * (WORD_BITS // 8)

    def encode(self, gradients: Array, residual: Array, payload: Array) -> int:
        if compiled.active:
            threshold = float(self.threshold)
            beyond = compiled.encode(self.name, gradients, residual, payload, threshold)
            if beyond >= 0:
                return beyond
        return self._encode(gradients, residual, payload)

    def _encode(self, gradients: Array, residual: Array, payload: Array) -> int:
        """Encode in NumPy, by tiles that stay in the cache."""
        beyond, end = 0, 0
        of_tile = np.empty((TILE, self.bits), np.bool_)
        with np.errstate(all="ignore"):
            for block in ranges(gradients.size, TILE):
                sums = residual[block]
                sums += gradients[block]
                bits = of_tile[: sums.size]
                self.quantise(sums, bits)
                codes = np.packbits(bits)
                start, end = end, end + codes.size
                payload[start:end] = codes
                beyond += np.count_nonzero(np.abs(sums) > self.bound)
        payload[end:] = 0
        return int(beyond)

    def count_sum(self, payloads: Arrays, counts: Array) -> None:
        count_levels(self._of_bytes, payloads, counts)

    def width(self, senders: int) -> int:
        greatest = senders * max(self.levels)
        return next(width for width in WIDTHS if greatest < 1 << width)

    def packed_nbytes(self, count: int, senders: int) -> int:
        return packed_nbytes(count, self.width(senders))

    def pack_counts(self, counts: Array, packed: Array, senders: int) -> None:
        pack_counts(counts, packed, self.width(senders))

    def unpack_counts(self, packed: Array, counts: Array, senders: int) -> None:
        unpack_counts(packed, counts, self.width(senders))

    def finish(self, counts: Array, senders: int, out: Array) -> None:
        # Half of a small integer is exact in float32, and so is the difference.
        middle = senders * max(self.levels) / 2
        scale_counts(counts, -middle, self.step, out)


def levels_of_bytes(bits: int, levels: Sequence[int]) -> Array:
    """Return for each byte the levels of its codes, the first in its most significant bits.

    Examples
    --------
    >>> levels_of_bytes(2, (1, 1, 0, 2))[0b11100000]
    array([2, 0, 1, 1], dtype=uint16)
    """
    shifts = np.arange(8 - bits, -1, -bits)
    codes = np.arange(256)[:, None] >> shifts & (1 << bits) - 1
    found: Array = np.asarray(levels, np.uint16)[codes]
    return found
