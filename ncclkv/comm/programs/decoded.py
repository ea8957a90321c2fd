"""`Decoded`: the elements that each rank decodes, if it reads the payloads of all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

from ncclkv.comm.destinations import To
from ncclkv.comm.two_step import slices
from ncclkv.comm.wire import Range

SHORT_BYTES = 16 * 1024
"""Up to this length of a payload a second step costs more than longer messages."""

Nodes = Sequence[Sequence[int]]


class Decoded(NamedTuple):
    """The elements that ranks decode, if they read the payloads of all.

    Attributes
    ----------
    parts : sequence of (int, int)
        The elements of each rank.
    shared : bool
        Whether the ranks of a node share the result.
    """

    parts: Sequence[Range]
    shared: bool


def decoded(count: int, unit: int, to: To, size: int, nodes: Nodes | None) -> Decoded:
    """Return the elements that each rank decodes of `count`.

    Parameters
    ----------
    count : int
    unit : int
        Slices of a node begin at multiples of so many elements.
    to, size, nodes
        As of `form_of`.

    Examples
    --------
    >>> from ncclkv.comm.destinations import EVERYONE
    >>> decoded(64, 16, EVERYONE, 3, [[0, 2], [1]])
    Decoded(parts=[(0, 32), (0, 64), (32, 64)], shared=True)
    """
    if to.divided or to.root is not None:
        parts = [to.part(rank, count) if to.receives(rank) else (0, 0) for rank in range(size)]
        return Decoded(parts, shared=False)
    if nodes is None:
        return Decoded([(0, count)] * size, shared=False)
    of_nodes = [zip(each, slices(count, len(each), unit), strict=True) for each in nodes]
    return Decoded([part for _, part in sorted(chain.from_iterable(of_nodes))], shared=True)
