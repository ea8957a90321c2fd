"""One rank's view of its node: the ranks there, the memory that they share, and their turns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ncclkv.comm.base import Buffer
from ncclkv.comm.node import flags
from ncclkv.comm.node.arena import Arena, Place
from ncclkv.comm.node.flags import Flags, Turn
from ncclkv.comm.node.space import MIB, Space
from ncclkv.comm.transport import Pending
from ncclkv.errors import RankLost
from ncclkv.kernels.host.reduce import Reducer

PAGE = 64 * 1024
"""A multiple of the pages of all machines."""

INLINE_BYTES = 16 * 1024
"""Up to here a sum is made by every rank itself, out of copies."""

INLINE_SLOTS = 16
"""How many of those may be under way at once."""

HALF_BYTES = 4 * MIB
"""What a rank copies at a time of arrays that its neighbours cannot read where they are."""

BLOCK_BYTES = 256 * 1024
"""A slice is summed, sent on and updated in blocks that stay in the cache."""

_HALVES = 2
_INLINE_FROM = -(-flags.NBYTES // PAGE) * PAGE
_HALVES_FROM = _INLINE_FROM + INLINE_SLOTS * INLINE_BYTES

CONTROL_BYTES = _HALVES_FROM + _HALVES * HALF_BYTES
"""The beginning of every rank's space: its flags and what it copies."""


class Node:
    """Memory and turns that the ranks of one node have in common.

    Parameters
    ----------
    ranks : sequence of int
        The ranks of this node, in order.
    rank : int
        This one.
    nodes : sequence of sequence of int
        The ranks of all nodes.
    spaces : sequence of Space
        Of each rank of the node; taken over.
    tell
        As for `Flags`.
    """

    def __init__(
        self,
        ranks: Sequence[int],
        rank: int,
        nodes: Sequence[Sequence[int]],
        spaces: Sequence[Space],
        tell: Callable[[], None],
    ) -> None:
        self.ranks = list(ranks)
        self.rank = rank
        self.index = self.ranks.index(rank)
        self.nodes = nodes
        self.owners = min(len(each) for each in nodes)
        self._spaces = spaces
        self._control = [space.map(0, CONTROL_BYTES) for space in spaces]
        pages = [page[: flags.NBYTES] for page in self._control]
        self.flags = Flags(pages, ranks, self.index, tell)
        self._own, self._common = self._arenas()
        self._maps: dict[tuple[int, int, int], Buffer] = {}
        self._inline: list[Turn | None] = [None] * INLINE_SLOTS
        self._inline_count = 0
        self._staged: Turn | None = None
        self._open: list[int] = []
        self._reducers: dict[tuple[np.dtype[Any], str], Reducer] = {}

    def _arenas(self) -> tuple[Arena, Arena]:
        """What this rank allocates from, and what all allocate from alike: the first one's end."""
        first, own = self._spaces[0], self._spaces[self.index]
        middle = (first.capacity + CONTROL_BYTES) // 2 // PAGE * PAGE
        stop = middle if self.index == 0 else own.capacity - PAGE
        common = Arena(first, middle, first.capacity - PAGE, reuse=False)
        return Arena(own, CONTROL_BYTES, stop), common

    # Memory

    def allocate(self, nbytes: int) -> Buffer | None:
        """Zeroed bytes of this rank's own that its neighbours can read; None without room."""
        try:
            return self._own.take(nbytes)
        except OSError:  # of a limit on address space or on files
            return None

    def common(self, nbytes: int) -> Buffer | None:
        """Zeroed bytes that all ranks of the node get, in the same order of calls.

        None without room; where there is none at all, not even of no bytes.
        """
        return self._common.take(nbytes) if self._common.size else None

    def is_common(self, array: Buffer) -> bool:
        """Whether an array lies in memory that all ranks have."""
        return array.size > 0 and self._common.place(array) is not None

    def place(self, array: Buffer) -> Place | None:
        """Where neighbours find an array of this rank's own; None where they cannot."""
        return self._own.place(array) if array.size else None

    def view(self, index: int, place: Place, nbytes: int) -> Buffer:
        """A neighbour's array, as bytes.

        Raises
        ------
        RankLost
            When it cannot be opened any more.
        """
        where = (index, place.start, place.length)
        extent = self._maps.get(where)
        if extent is None:
            try:
                extent = self._spaces[index].map(place.start, place.length)
            except OSError as error:
                raise RankLost(
                    f"rank {self.rank}: the memory of rank {self.ranks[index]} cannot be mapped "
                    f"({error}); it may have left"
                ) from error
            self._maps[where] = extent
        return extent[place.offset : place.offset + nbytes]

    # Arithmetic

    def reducer(self, dtype: np.dtype[Any], op: str) -> Reducer:
        """What reduces parts of up to `BLOCK_BYTES`; one for all, for it has memory of its own."""
        known = self._reducers.get((dtype, op))
        if known is None:
            known = self._reducers[dtype, op] = Reducer(dtype, BLOCK_BYTES // dtype.itemsize, op)
        return known

    # Copies

    def take_inline(self, turn: Turn) -> tuple[int, Turn | None]:
        """The next place for a short copy, and whose it was: some may still read what was there."""
        slot = self._inline_count % INLINE_SLOTS
        self._inline_count += 1
        before, self._inline[slot] = self._inline[slot], turn
        return slot, before

    def inline(self, index: int, slot: int, nbytes: int) -> Buffer:
        """A rank's short copy."""
        lo = _INLINE_FROM + slot * INLINE_BYTES
        return self._control[index][lo : lo + nbytes]

    def open(self, turn: Turn) -> None:
        """Note a collective that may need this rank's halves."""
        self._open.append(turn.number)

    def decide(self, turn: Turn) -> None:
        """Note that a collective has them, or needs none."""
        self._open.remove(turn.number)

    def undecided(self, turn: Turn) -> list[Pending]:
        """What keeps a collective from taking the halves: an earlier one that may need them.

        All ranks so take them in one order, and none waits for another in a circle.
        """
        return [] if self.first(turn) else [_First(self, turn)]

    def first(self, turn: Turn) -> bool:
        """Whether no earlier collective may need the halves."""
        return self._open[0] == turn.number

    def take_halves(self, turn: Turn) -> list[Pending]:
        """Those who may still read what is in this rank's halves."""
        before, self._staged = self._staged, turn
        return [] if before is None else before.unfinished()

    def half(self, index: int, number: int, nbytes: int) -> Buffer:
        """What a rank has copied of the chunk of that number."""
        lo = _HALVES_FROM + number % _HALVES * HALF_BYTES
        return self._control[index][lo : lo + nbytes]

    def close(self) -> None:
        """Open no more of the neighbours' memory; what is mapped stays as long as it is used."""
        for space in self._spaces:
            space.close()


class _First(Pending):
    """The moment when a collective is the first that may need this rank's halves."""

    def __init__(self, node: Node, turn: Turn) -> None:
        self.peer = node.rank
        self._node = node
        self._turn = turn

    def done(self) -> bool:
        return self._node.first(self._turn)
