"""`Node`: one rank's view of its node: its ranks, their shared memory, and collective slots."""

from __future__ import annotations

import errno
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
from ncclkv.comm.wire import others
from ncclkv.errors import CommAborted, OutOfMemory, RankLost
from ncclkv.kernels.host.reduce import FlatReducer

PAGE = 64 * 1024
"""A multiple of the pages of all machines."""

BLOCK_BYTES = 256 * 1024
"""Size of a block: slices are reduced, copied and updated in blocks that stay in the cache."""

_STAGING_FROM = -(-(sequence.NBYTES + flight_recorder.NBYTES) // PAGE) * PAGE

CONTROL_BYTES = _STAGING_FROM + staging.NBYTES
"""Size of the beginning of every segment: flags and headers, flight recorder, staging memory."""


class Node:
    """The ranks of one node and their shared memory, as one rank sees them.

    Parameters
    ----------
    ranks : sequence of int
        The ranks of this node, in order.
    rank : int
        This rank.
    nodes : sequence of sequence of int
        The ranks of all nodes.
    segments : sequence of Segment
        The segment of each rank of the node; owned by this object.
    notify : callable
        As for `SequenceTable`.

    Attributes
    ----------
    index : int
        The index of this rank in `ranks`.
    owners : int
        Count of ranks that reduce a slice: that of the smallest node.
    neighbours : dict of int to int
        The index in `ranks` of each other rank of the node, in the order of `Wire.peers`.
    far : list of int
        The ranks of other nodes, in that order.
    pages : dict of int to ndarray
        The flight recorder's page of each rank.
    sequence : SequenceTable
    double_buffer : DoubleBuffer
    """

    def __init__(
        self,
        ranks: Sequence[int],
        rank: int,
        nodes: Sequence[Sequence[int]],
        segments: Sequence[Segment],
        notify: Callable[[], None],
    ) -> None:
        self.ranks = list(ranks)
        self.rank = rank
        self.index = self.ranks.index(rank)
        self.nodes = nodes
        self.owners = min(len(each) for each in nodes)
        peers = others(rank, sum(map(len, nodes)))
        indices = {peer: index for index, peer in enumerate(self.ranks)}
        self.neighbours = {peer: indices[peer] for peer in peers if peer in indices}
        self.far = [peer for peer in peers if peer not in indices]
        self._segments = segments
        self._control = [segment.map(0, CONTROL_BYTES) for segment in segments]
        tables = [memory[: sequence.NBYTES] for memory in self._control]
        self.sequence = SequenceTable(tables, ranks, self.index, notify)
        pages = [
            memory[sequence.NBYTES : sequence.NBYTES + flight_recorder.NBYTES]
            for memory in self._control
        ]
        self.pages = dict(zip(ranks, pages, strict=True))
        self._local, self._shared = self._allocators()
        self._maps: dict[tuple[int, int, int], Buffer] = {}
        self._rings, self.double_buffer = self._staging()
        self._reducers: dict[tuple[np.dtype[Any], str], FlatReducer] = {}

    def _allocators(self) -> tuple[Allocator, Allocator]:
        """Return the allocators of this rank's memory and of the memory that all ranks share.

        The shared memory is the second half of the first segment.
        """
        first, local = self._segments[0], self._segments[self.index]
        middle = (first.capacity + CONTROL_BYTES) // 2 // PAGE * PAGE
        stop = middle if self.index == 0 else local.capacity - PAGE
        shared = Allocator(first, middle, first.capacity - PAGE, reuse=False)
        return Allocator(local, CONTROL_BYTES, stop), shared

    # Memory

    def allocate(self, nbytes: int) -> Buffer | None:
        """Allocate zeroed bytes that the neighbours can read; None when no memory is left."""
        try:
            return self._local.take(nbytes)
        except OSError:  # a limit on address space or on open files
            return None

    def node_shared(self, nbytes: int) -> Buffer | None:
        """Allocate zeroed bytes that all ranks of the node share; None when no memory is left.

        All ranks make the same calls in the same order.  Without shared memory, a request for 0
        bytes returns None too.

        Raises
        ------
        OutOfMemory
            When the memory cannot be mapped here: other ranks may have it, so None would differ.
        """
        try:
            return self._shared.take(nbytes) if self._shared.size else None
        except OSError as error:
            raise OutOfMemory(
                f"{nbytes:,} bytes that the ranks of this node share cannot be mapped ({error}); "
                f"give this process more address space (ulimit -v) or fewer other mappings"
            ) from error

    def rolling_back_node_shared(self) -> AbstractContextManager[None]:
        """Give back what a block takes by `node_shared`, if the block raises."""
        return self._shared.rolling_back()

    def is_node_shared(self, array: Buffer) -> bool:
        """Return whether an array lies in memory that all ranks of the node share."""
        return self.shared_offset_of(array) is not None

    def shared_offset_of(self, array: Buffer) -> Offset | None:
        """Return the offset of an array that all ranks of the node share; else None.

        The offset is in the segment of the node's first rank.
        """
        return self._shared.offset_of(array) if array.size else None

    def offset_of(self, array: Buffer) -> Offset | None:
        """Return the offset of an array of this rank; None when neighbours cannot map the array."""
        return self._local.offset_of(array) if array.size else None

    def view(self, index: int, offset: Offset, nbytes: int) -> Buffer:
        """Map a neighbour's array; return its bytes.

        Raises
        ------
        RankLost
            When the neighbour's file cannot be mapped any more.
        CommAborted
            When this process has no address space left.
        """
        key = (index, offset.start, offset.length)
        extent = self._maps.get(key)
        if extent is None:
            try:
                extent = self._segments[index].map(offset.start, offset.length)
            except OSError as error:
                neighbour, text = self.ranks[index], f"cannot be mapped ({error})"
                if error.errno == errno.ENOMEM:
                    raise CommAborted(
                        f"rank {self.rank}: the memory of rank {neighbour} {text}; give rank "
                        f"{self.rank} more address space (ulimit -v) or fewer other mappings"
                    ) from error
                raise RankLost(
                    f"rank {self.rank}: the memory of rank {neighbour} {text}; look at whether "
                    f"rank {neighbour} still runs",
                    ranks=[neighbour],
                ) from error
            self._maps[key] = extent
        return extent[offset.offset : offset.offset + nbytes]

    # Arithmetic

    def reducer(self, dtype: np.dtype[Any], op: str) -> FlatReducer:
        """Return the cached reducer of parts of up to `BLOCK_BYTES`; it owns scratch memory."""
        cached = self._reducers.get((dtype, op))
        if cached is None:
            cached = self._reducers[dtype, op] = FlatReducer(
                dtype, BLOCK_BYTES // dtype.itemsize, op
            )
        return cached

    # Staging memory

    def ring(self, nbytes: int) -> SlotRing:
        """Return the ring whose slots hold `nbytes`, at most `INLINE_BYTES`."""
        return next(ring for ring in self._rings if nbytes <= ring.nbytes)

    def _staging(self) -> tuple[list[SlotRing], DoubleBuffer]:
        """Return the rings and the double buffer, at the end of each rank's control memory."""
        rings, lo = [], _STAGING_FROM
        for nbytes, count in RINGS:
            pages = [memory[lo : lo + nbytes * count] for memory in self._control]
            rings.append(SlotRing(pages, nbytes))
            lo += nbytes * count
        return rings, DoubleBuffer([memory[lo:] for memory in self._control], self.rank)

    def close(self) -> None:
        """Map no more memory of neighbours; existing maps stay while their arrays exist."""
        for segment in self._segments:
            segment.close()
