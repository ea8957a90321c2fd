"""topk: the largest gradients, with their indices; the others stay in the residual."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

from ncclkv.compress.declared import SCOPE, Parameter, share
from ncclkv.errors import NotSupported
from ncclkv.kernels.base import Array
from ncclkv.kernels.host.largest import take_largest

MOST = 2**31 - 1
"""Elements of a key at most: an index has 32 bits, and a sign."""


class TopK:
    """The gradients of a key whose magnitude with the residual is largest.

    NaN counts as the largest magnitude, so that it is sent and seen.  Of equal magnitudes the first
    are sent.

    Parameters
    ----------
    ratio : float
        Share of a key's gradients that is sent, above 0 and at most 1.
    scope : str
        The sender: ``"rank"``, or the ranks of a node together (``"node"``).

    Examples
    --------
    >>> import numpy as np
    >>> from ncclkv.kernels.host.largest import add_largest
    >>> codec, residual = TopK(ratio=0.5), np.zeros(4, np.float32)
    >>> payload, out = np.empty(codec.nbytes(4), np.uint8), np.zeros(4, np.float32)
    >>> codec.encode(np.array([1, -3, 2, -2], np.float32), residual, payload)
    >>> add_largest(payload, out)
    >>> out, residual
    (array([ 0., -3.,  2.,  0.], dtype=float32), array([ 1.,  0.,  0., -2.], dtype=float32))
    """

    name = "topk"
    declared = (Parameter("ratio", 0.01, share), SCOPE)
    keeps_residual = True
    dtypes = ("float32",)
    ops = ("sum", "avg")
    most_senders = sys.maxsize

    def __init__(self, ratio: float = 0.01, scope: str = "rank") -> None:
        self.ratio = ratio
        self.parameters: Mapping[str, Any] = {"type": self.name, "ratio": ratio, "scope": scope}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.parameters})"

    def kept(self, count: int) -> int:
        """Return the count of gradients that are sent, of `count` ones of a key.

        Examples
        --------
        >>> [TopK(ratio=0.1).kept(count) for count in (0, 1, 14, 16)]
        [0, 1, 1, 2]
        """
        return min(count, max(1, round(self.ratio * count)))

    def pays(self, shape: Sequence[int], senders: int) -> bool:
        """Return whether all payloads have fewer 32-bit words than the key.

        Examples
        --------
        >>> TopK(ratio=0.1).pays((4, 5), 4), TopK(ratio=0.1).pays((4, 5), 16), TopK().pays((3,), 4)
        (True, False, False)
        """
        count = math.prod(shape)
        return self.kept(count) * senders < count

    def nbytes(self, count: int) -> int:
        """Return the bytes of the payload of `count` gradients of a key.

        Raises
        ------
        NotSupported
            For more gradients than an index can name.
        """
        if count > MOST:
            raise NotSupported(
                f"topk cannot name {count:,} elements of a key in 31 bits; split the key, or give "
                f"the type 'fp16'"
            )
        return 8 * self.kept(count)

    def ends(self, counts: Iterable[int]) -> list[int]:
        """Return the bytes before the payload of each key of a range, and those of all payloads.

        Parameters
        ----------
        counts : iterable of int
            The gradients of each key.

        Examples
        --------
        >>> TopK(ratio=0.5).ends([6, 2])
        [0, 24, 32]
        """
        return [*accumulate(map(self.nbytes, counts), initial=0)]

    def encode(self, gradients: Array, residual: Array, payload: Array) -> None:
        """Add the gradients of a key to the residual, and move the largest sums to the payload.

        Parameters
        ----------
        gradients : ndarray of float32, shape (n,)
        residual : ndarray of float32, shape (n,)
            Shares no memory with the gradients; what is sent becomes 0.
        payload : ndarray of uint8, shape (nbytes(n),)
            Receives the indices, of int32 and ascending, and then the elements, of float32.
        """
        take_largest(gradients, residual, payload)
