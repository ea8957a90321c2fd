"""`Codec`: the interface of compressed forms of gradients; `CountedCodec`: of few bits each.

A code of few bits stands for a level.  What it does not send stays in the residual, a value for
each gradient, which a sender adds to its next gradients.  Ranks exchange payloads of codes.  Their
sum is made of integers, the counts, so that it has the same bits in any order.  Counts may travel
on, packed: a sum is compressed in both directions, and loses nothing more.

A codec has arithmetic alone, on flat arrays of the host.  The programs that exchange payloads and
counts, and the residuals themselves, belong to other parts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from ncclkv.kernels.base import Array, Arrays


class Codec(Protocol):
    """A compressed form of gradients.

    Attributes
    ----------
    name : str
        Its type among the parameters of compression.
    parameters : mapping of str to Any
        All parameters, with their defaults.
    keeps_residual : bool
        Whether what it does not send is added to the next gradients.
    dtypes : sequence of str
        Names of the dtypes of gradients that it encodes.
    ops : sequence of str
        The reductions over ranks whose gradients it encodes.
    most_senders : int
        The largest count of senders whose codes it can sum.
    """

    @property
    def name(self) -> str: ...

    @property
    def parameters(self) -> Mapping[str, Any]: ...

    @property
    def keeps_residual(self) -> bool: ...

    @property
    def dtypes(self) -> Sequence[str]: ...

    @property
    def ops(self) -> Sequence[str]: ...

    @property
    def most_senders(self) -> int: ...

    def pays(self, shape: Sequence[int], senders: int) -> bool:
        """Return whether all payloads of a key of this shape are shorter than its gradients."""


class Payloads(Protocol):
    """Payloads that are cut, and whose sums travel on in a packed form.

    Attributes
    ----------
    unit : int
        Elements of a whole word of a payload: payloads are cut at multiples of it.
    """

    unit: int

    def nbytes(self, count: int) -> int:
        """Return the bytes of the payload of `count` elements."""

    def width(self, senders: int) -> int:
        """Return the bits of an element of a packed sum of as many senders."""

    def packed_nbytes(self, count: int, senders: int) -> int:
        """Return the bytes of a packed sum of `count` elements."""


class CountedCodec(Codec, Payloads, Protocol):
    """A codec whose codes are summed as integers, which are at most 16 bits wide.

    Attributes
    ----------
    bound : float
        The largest magnitude of a residual that is not counted by `encode`.
    """

    bound: float

    def advice(self, root_mean_square: float) -> str:
        """Return what to change if residuals grow, for gradients of this root mean square."""

    def encode(self, gradients: Array, residual: Array, payload: Array) -> int:
        """Add gradients to the residual, and move what can be sent from there to the payload.

        Parameters
        ----------
        gradients : ndarray of float32, shape (n,)
            Those of one key: padding between keys is not encoded.
        residual : ndarray of float32, shape (n,)
            Shares no memory with the gradients.
        payload : ndarray of uint8, shape (nbytes(n),)
            Written whole; the bits behind the last element are 0.

        Returns
        -------
        int
            The count of residuals that stay beyond the bound of the codec.  They grow from push to
            push if there are many: the gradients are larger than what a code can send.
        """

    def count_sum(self, payloads: Arrays, counts: Array) -> None:
        """Set `counts`, an ndarray of uint16, to the sums of the payloads of all senders.

        A payload may be longer than the counts need.
        """

    def pack_counts(self, counts: Array, packed: Array, senders: int) -> None:
        """Pack counts, the first in the most significant bits; a last byte is filled with zeros.

        Parameters
        ----------
        counts : ndarray of uint16, shape (n,)
        packed : ndarray of uint8, shape (packed_nbytes(n, senders),)
        senders : int
        """

    def unpack_counts(self, packed: Array, counts: Array, senders: int) -> None:
        """Set `counts` to those in `packed`, the opposite of `pack_counts`."""

    def finish(self, counts: Array, senders: int, out: Array) -> None:
        """Set `out`, an ndarray of float32, to the sum of what the senders sent.

        Each element is rounded once.
        """
