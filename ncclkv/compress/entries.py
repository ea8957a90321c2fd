"""Encoding by entries: the keys of a range, between which there may be padding.

Padding is not encoded: its codes are 0, which a codec may decode to another value than 0.  So what
is decoded is cleared there.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence

from ncclkv.compress.base import CountedCodec
from ncclkv.kernels.base import Array, Arrays

Bounds = Sequence[tuple[int, int]]
"""Elements ``[lo, hi)`` of each entry of a range, in their order; those of an empty one are equal.

Each that is not empty begins at a multiple of the codec's `unit`.
"""


def encode_entries(
    codec: CountedCodec, entries: Bounds, gradients: Arrays, residuals: Arrays, payload: Array
) -> list[int]:
    """Encode each entry of a range.

    Parameters
    ----------
    codec : CountedCodec
    entries : sequence of (int, int)
    gradients : sequence of ndarray of float32
        The gradients of each entry.
    residuals : sequence of ndarray of float32
        The residual of each entry.
    payload : ndarray of uint8, shape (codec.nbytes(n),)
        Of the whole range; written whole.

    Returns
    -------
    list of int
        What `CountedCodec.encode` has returned, by entry.
    """
    beyond, end = [], 0
    for (lo, hi), gradient, residual in zip(entries, gradients, residuals, strict=True):
        if lo == hi:
            beyond.append(0)
            continue
        start = codec.nbytes(lo)
        payload[end:start] = 0
        end = start + codec.nbytes(hi - lo)
        beyond.append(codec.encode(gradient, residual, payload[start:end]))
    payload[end:] = 0
    return beyond


class Padding:
    """The elements of a range that no entry has.

    Parameters
    ----------
    entries : sequence of (int, int)
    count : int
        Elements of the range.

    Attributes
    ----------
    gaps : list of (int, int)
        In their order.

    Examples
    --------
    >>> padding = Padding([(0, 3), (16, 17), (17, 17)], 32)
    >>> padding.gaps
    [(3, 16), (17, 32)]
    """

    def __init__(self, entries: Bounds, count: int) -> None:
        self.gaps: list[tuple[int, int]] = []
        end = 0
        for lo, hi in [*entries, (count, count)]:
            if end < lo:
                self.gaps.append((end, lo))
            end = hi

    def within(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Yield the padding among the elements from `start` up to `stop`, counted from `start`.

        Examples
        --------
        >>> [*Padding([(0, 3), (4, 6)], 8).within(2, 7)]
        [(1, 2), (4, 5)]
        """
        first = bisect_right(self.gaps, start, key=lambda gap: gap[1])
        for lo, hi in self.gaps[first:]:
            if lo >= stop:
                return
            yield max(lo, start) - start, min(hi, stop) - start

    def clear(self, start: int, out: Array) -> None:
        """Set padding to 0 in `out`, the elements from `start` on.

        Examples
        --------
        >>> import numpy as np
        >>> out = np.ones(6)
        >>> Padding([(0, 3), (4, 6)], 8).clear(2, out)
        >>> out
        array([1., 0., 1., 1., 0., 0.])
        """
        for lo, hi in self.within(start, start + out.size):
            out[lo:hi] = 0
