"""`Node`: one rank's view of its node: its ranks, their shared memory, and collective slots."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from ncclkv.comm.diagnosis import flight_recorder
from ncclkv.comm.shm import sequence, staging
from ncclkv.comm.shm.allocator import Allocator, Offset
from ncclkv.comm.shm.segment import Segment
from ncclkv.comm.shm.sequence import SequenceTable
from ncclkv.comm.shm.staging import RINGS, DoubleBuffer, SlotRing
from ncclkv.comm.types import Buffer
from ncclkv.errors import OutOfMemory, RankLost
from ncclkv.kernels.host.reduce import Reducer

PAGE = 64 * 1024
"""A multiple of the pages of all machines."""

BLOCK_BYTES = 256 * 1024
"""A slice is summed, sent on and updated in blocks that stay in the cache."""

_COPIES_FROM = -(-(sequence.NBYTES + flight_recorder.NBYTES) // PAGE) * PAGE

CONTROL_BYTES = _COPIES_FROM + staging.NBYTES
"""The beginning of every rank's space: its flags, its calls and what it copies."""


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
    notify
        As for `SequenceTable`.

    Attributes
    ----------
    boards : dict of ndarray by rank
        The pages of `comm.board`.
    """

    def __init__(
        self,
        ranks: Sequence[int],
        rank: int,
        nodes: Sequence[Sequence[int]],
        spaces: Sequence[Segment],
        notify: Callable[[], None],
    ) -> None:
        self.ranks = list(ranks)
        self.rank = rank
        self.index = self.ranks.index(rank)
        self.nodes = nodes
        self.owners = min(len(each) for each in nodes)
        self._spaces = spaces
        self._control = [space.map(0, CONTROL_BYTES) for space in spaces]
        pages = [page[: sequence.NBYTES] for page in self._control]
        self.sequence = SequenceTable(pages, ranks, self.index, notify)
        boards = [
            page[sequence.NBYTES : sequence.NBYTES + flight_recorder.NBYTES]
            for page in self._control
        ]
        self.boards = dict(zip(ranks, boards, strict=True))
        self._own, self._common = self._arenas()
        self._maps: dict[tuple[int, int, int], Buffer] = {}
        self._rings, self.halves = self._copies()
        self._reducers: dict[tuple[np.dtype[Any], str], Reducer] = {}

    def _arenas(self) -> tuple[Allocator, Allocator]:
        """Return the allocators of this rank and of the node, at the end of the first segment."""
        first, own = self._spaces[0], self._spaces[self.index]
        middle = (first.capacity + CONTROL_BYTES) // 2 // PAGE * PAGE
        stop = middle if self.index == 0 else own.capacity - PAGE
        common = Allocator(first, middle, first.capacity - PAGE, reuse=False)
        return Allocator(own, CONTROL_BYTES, stop), common

    # Memory

    def allocate(self, nbytes: int) -> Buffer | None:
        """Zeroed bytes of this rank's own that its neighbours can read; None without room."""
        try:
            return self._own.take(nbytes)
        except OSError:  # of a limit on address space or on files
            return None

    def node_shared(self, nbytes: int) -> Buffer | None:
        """Zeroed bytes that all ranks of the node get, in the same order of calls.

        None without room; where there is none at all, not even of no bytes.

        Raises
        ------
        OutOfMemory
            When the memory cannot be mapped here: other ranks may have it, so None would differ.
        """
        try:
            return self._common.take(nbytes) if self._common.size else None
        except OSError as error:
            raise OutOfMemory(
                f"{nbytes:,} bytes that the ranks of this node share cannot be mapped ({error}); "
                f"give this process more address space (ulimit -v) or fewer other mappings"
            ) from error

    def rolling_back_node_shared(self) -> AbstractContextManager[None]:
        """Give back what a block takes by `node_shared`, if the block raises."""
        return self._common.rolling_back()

    def is_node_shared(self, array: Buffer) -> bool:
        """Return whether an array lies in memory that all ranks of the node share."""
        return array.size > 0 and self._common.place(array) is not None

    def place(self, array: Buffer) -> Offset | None:
        """Return the offset of an array of this rank's own; None when neighbours cannot map it."""
        return self._own.place(array) if array.size else None

    def view(self, index: int, place: Offset, nbytes: int) -> Buffer:
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
        """Return the cached reducer of parts of up to `BLOCK_BYTES`; it owns scratch memory."""
        known = self._reducers.get((dtype, op))
        if known is None:
            known = self._reducers[dtype, op] = Reducer(dtype, BLOCK_BYTES // dtype.itemsize, op)
        return known

    # Copies

    def ring(self, nbytes: int) -> SlotRing:
        """The places for copies of so many bytes, `INLINE_BYTES` at most."""
        return next(ring for ring in self._rings if nbytes <= ring.nbytes)

    def _copies(self) -> tuple[list[SlotRing], DoubleBuffer]:
        """The places for copies, at the end of each rank's control memory."""
        rings, lo = [], _COPIES_FROM
        for nbytes, count in RINGS:
            pages = [page[lo : lo + nbytes * count] for page in self._control]
            rings.append(SlotRing(pages, nbytes))
            lo += nbytes * count
        return rings, DoubleBuffer([page[lo:] for page in self._control], self.rank)

    def close(self) -> None:
        """Open no more of the neighbours' memory; what is mapped stays as long as it is used."""
        for space in self._spaces:
            space.close()
