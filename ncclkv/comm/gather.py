"""`Gather`: an allgather as a program; in memory that a node shares each part is written once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ncclkv.comm.transport import Steps
from ncclkv.comm.types import Apply, Buffer
from ncclkv.comm.wire import Range, Wants, Wire


@dataclass(frozen=True)
class Gather:
    """An allgather, as one rank makes it.

    Attributes
    ----------
    own : ndarray, shape (n,)
        The part that this rank sends.
    parts : sequence of ndarray
        Receive the parts of all ranks; this rank's part may be `own`.
    nodes : sequence of sequence of int, or None
        The ranks of each node, if these share the memory of `parts` and have written their own
        there.  Then a part is sent to a node once: to the rank of the same index there.
    """

    own: Buffer
    parts: Sequence[Buffer]
    nodes: Sequence[Sequence[int]] | None = None

    def steps(self, wire: Wire, apply: Apply | None) -> Steps:
        """Take this rank's part."""
        if self.nodes is not None:
            wire.share_result()
        yield from wire.read(self.own, self._wants(), self.parts)

    def _wants(self) -> Wants:
        """Return the elements that a rank reads of another: all, or none."""
        if self.nodes is None:
            return lambda reader, owner: (0, self.parts[owner].size)
        places = {rank: (ranks, ranks.index(rank)) for ranks in self.nodes for rank in ranks}

        def wants(reader: int, owner: int) -> Range | None:
            (ranks, index), (others, place) = places[reader], places[owner]
            # On a smaller node, a rank receives for several indices of a larger one.
            reads = ranks is not others and place % len(ranks) == index
            return (0, self.parts[owner].size) if reads else None

        return wants
