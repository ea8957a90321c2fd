"""Allreduce in the shared memory of a node: each rank reduces one slice of its neighbours' arrays.

A rank reads its slice from all ranks' arrays, reduces in rank order, and writes the sum into each
`receive`.  One rule prevents races.  Memory that peers can read is written by its owner before the
owner enters the collective, or by the owner of the slice while all ranks are inside.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from ncclkv.comm.shm import header
from ncclkv.comm.shm.allocator import Offset
from ncclkv.comm.shm.hierarchical import CrossNode, refusing
from ncclkv.comm.shm.node import BLOCK_BYTES, Node
from ncclkv.comm.shm.sequence import DONE, ENTERED
from ncclkv.comm.shm.staging import HALF_BYTES
from ncclkv.comm.transport import Steps
from ncclkv.comm.two_step import slices
from ncclkv.comm.types import Apply, Buffer
from ncclkv.kernels.host.compiled import STREAM_BYTES
from ncclkv.kernels.host.pack import move

_UNKNOWN = -1
"""Length that no array has: it marks a header that is not known yet."""


class _Block(NamedTuple):
    """Elements ``[lo, hi)``: every rank's part, and the peers' arrays that receive the sum."""

    lo: int
    hi: int
    parts: Sequence[Buffer]
    copies: Sequence[Buffer]


class ReductionPlan:
    """The peers' arrays and the blocks of one reduction, found once and used at each launch.

    The plan refers to none of this rank's own arrays.

    Parameters
    ----------
    node : Node
    send, receive : ndarray, shape (n,)
    op : str
    root : int or None
        The one rank that receives; by default all do.
    sharded_update : bool
        True when each rank of the node calls `apply` on its own slice, False when each calls it on
        the whole array.  If True, `receive` is shared memory, or receives this rank's slice alone.

    Attributes
    ----------
    reduce : FlatReducer
        Reduces the parts of a block.
    is_local : bool
        Whether this rank receives the sum.
    call : CollectiveHeader
    header : sequence of int
        The words that this rank publishes.
    sends : dict of ndarray, or None
        Every rank's array by its index on the node; None when one cannot be mapped.
    receives : dict of ndarray, or None
        The peers' arrays for the sum; None when one cannot be mapped.
    headers : list of list of int
        The words that each rank has published, without the digest.
    in_place : bool
        True when all arrays are mapped: none is copied through staging memory.
    """

    def __init__(
        self,
        node: Node,
        send: Buffer,
        receive: Buffer,
        op: str,
        root: int | None,
        *,
        sharded_update: bool,
    ) -> None:
        self._node = node
        self._count, self._dtype = send.size, send.dtype
        self.op, self.root, self.sharded_update = op, root, sharded_update
        self.reduce = node.reducer(send.dtype, op)
        self.is_local = root in (None, node.rank)
        self.call = header.reduction(
            send.nbytes, send.dtype, op, root, sharded_update=sharded_update
        )
        target = node.offset_of(receive) if self.is_local and not sharded_update else None
        self.header = header.write(self.call, node.offset_of(send), target)
        self.sends: dict[int, Buffer] | None = None
        self.receives: dict[int, Buffer] | None = None
        self.in_place = False
        self.headers: list[list[int]] = [[_UNKNOWN]] * len(node.ranks)
        self._blocks: list[_Block] = []

    def resolve_peers(self, headers: list[list[int]]) -> None:
        """Map the arrays that all ranks have published.

        Raises
        ------
        OrderMismatch
            When a rank has published another call.
        """
        node = self._node
        header.check_all(self.call, node, headers)
        both = [header.offsets(words) for words in headers]
        self.sends = self._views({index: send for index, (send, _) in enumerate(both)})
        targets = {index: receive for index, (_, receive) in enumerate(both) if self._gets(index)}
        self.receives = self._views(targets)
        if self.receives is not None:
            # This rank's own array is written without a view.
            self.receives.pop(node.index, None)
        self.in_place = self.sends is not None and self.receives is not None
        self._blocks = self._blocks_of_slice()
        # Digests change with every call; the words behind them stay.
        self.headers = [words[1:] for words in headers]

    def _gets(self, index: int) -> bool:
        """Return whether peers write the sum into an array of this rank of the node."""
        return not self.sharded_update and self.root in (None, self._node.ranks[index])

    def _views(self, offsets: dict[int, Offset | None]) -> dict[int, Buffer] | None:
        """Map the arrays at these offsets; None when one of the arrays cannot be mapped."""
        nbytes, dtype = self._count * self._dtype.itemsize, self._dtype
        views = {}
        for index, offset in offsets.items():
            if offset is None:
                return None
            views[index] = self._node.view(index, offset, nbytes).view(dtype)
        return views

    def _blocks_of_slice(self) -> list[_Block]:
        """Cut this rank's slice into blocks.

        The list is empty if an array cannot be mapped, or this rank reduces no slice.
        """
        node = self._node
        if self.sends is None or self.receives is None or node.index >= node.owners:
            return []
        first, last = slices(self._count, node.owners)[node.index]
        step = BLOCK_BYTES // self._dtype.itemsize
        blocks = []
        for lo in range(first, last, step):
            hi = min(lo + step, last)
            parts = [send[lo:hi] for send in self.sends.values()]
            copies = [receive[lo:hi] for receive in self.receives.values()]
            blocks.append(_Block(lo, hi, parts, copies))
        return blocks

    def run(self, receive: Buffer, apply: Apply | None) -> None:
        """Reduce this rank's slice block by block; copy each block to the peers, and update it."""
        nbytes = self._count * self._dtype.itemsize
        # A block that is read again at once, by a copy or an update, is kept in the cache.
        stream = nbytes >= STREAM_BYTES and not self.receives and apply is None
        for lo, hi, parts, copies in self._blocks:
            block = receive[lo:hi] if self.is_local else copies[0]
            self.reduce(parts, block, stream)
            if self.is_local:
                for copy in copies:
                    copy[...] = block
            if apply is not None:
                apply(lo, hi)


class AllReduce:
    """One launch of a reduction, as one rank carries it out.

    Parameters
    ----------
    node : Node
    plan : ReductionPlan
        Prepared for these two arrays.
    send, receive : ndarray
    apply : callable or None

    Attributes
    ----------
    slot : CollectiveSlot
    """

    def __init__(
        self, node: Node, plan: ReductionPlan, send: Buffer, receive: Buffer, apply: Apply | None
    ) -> None:
        self._node = node
        self._plan = plan
        self._cross: CrossNode | None = None
        self._send, self._receive = send, receive
        self._apply = apply if plan.is_local else None
        self.slot = node.sequence.next_slot()
        node.double_buffer.enqueue(self.slot)

    def steps_across(self, cross: CrossNode) -> Steps:
        """Take `steps`, with `cross` between nodes; refuse other calls at all ranks."""
        self._cross = cross
        return refusing(cross, self.slot, self.steps())

    def steps(self) -> Steps:
        """Reduce slices of mapped arrays in place, or slices of copied chunks."""
        plan, slot = self._plan, self.slot
        if not slot.is_free():
            yield slot.until_free()
        slot.write_header(plan.header)
        slot.publish(ENTERED)
        if not slot.all_reached(ENTERED):
            yield slot.stragglers(ENTERED)
        if not slot.headers_match(plan.headers):
            plan.resolve_peers(slot.headers())
        if plan.in_place and self._cross is None:
            self._node.double_buffer.dequeue(slot)
            plan.run(self._receive, self._apply if plan.sharded_update else None)
        else:
            yield from self._in_chunks()
        slot.publish(DONE)
        if plan.receives is not None and not slot.all_reached(DONE):
            # Peers read and write this rank's arrays until they are done.
            yield slot.stragglers(DONE)
        if self._apply is not None and not self._plan.sharded_update:
            self._apply(0, self._send.size)

    def _in_chunks(self) -> Steps:
        """Reduce chunk after chunk: for other nodes, or with copies of unmapped arrays."""
        node, slot, plan, count = self._node, self.slot, self._plan, self._send.size
        if plan.in_place:
            node.double_buffer.dequeue(slot)
        else:
            yield from node.double_buffer.acquire(slot)
        phase = ENTERED
        step = HALF_BYTES // self._send.itemsize
        for index, start in enumerate(range(0, count, step)):
            chunk = _Chunk(index, start, min(start + step, count))
            if plan.sends is None:
                self._copy_in(chunk)
                phase += 1
                slot.publish(phase)
                yield slot.stragglers(phase)
            yield from self._reduce_chunk(chunk)
            if plan.receives is None:
                phase += 1
                slot.publish(phase)
                yield slot.stragglers(phase)
                self._copy_out(chunk)

    def _staged(self, index: int, chunk: _Chunk) -> Buffer:
        """Return a rank's copy of a chunk."""
        nbytes = (chunk.stop - chunk.start) * self._send.itemsize
        return self._node.double_buffer.copy(index, chunk.chunk_index, nbytes).view(
            self._send.dtype
        )

    def _slices(self, chunk: _Chunk) -> list[tuple[int, int]]:
        """Return the elements of a chunk that each owner reduces."""
        return slices(chunk.stop - chunk.start, self._node.owners, start=chunk.start)

    def _copy_in(self, chunk: _Chunk) -> None:
        """Copy the slices of a chunk that peers reduce to this rank's staging memory."""
        own = self._staged(self._node.index, chunk)
        for index, (lo, hi) in enumerate(self._slices(chunk)):
            if index != self._node.index:
                own[lo - chunk.start : hi - chunk.start] = self._send[lo:hi]

    def _reduce_chunk(self, chunk: _Chunk) -> Steps:
        """Reduce this rank's slice of a chunk; into its own copy, too, if a `receive` is unmapped.

        The copy comes first: `receive` may be this rank's part of the sum.
        """
        node, plan = self._node, self._plan
        if node.index >= node.owners:
            return
        lo, hi = self._slices(chunk)[node.index]
        if plan.sends is None:
            copies = [self._staged(each, chunk) for each in range(len(node.ranks))]
            parts = [copy[lo - chunk.start : hi - chunk.start] for copy in copies]
            parts[node.index] = self._send[lo:hi]
        else:
            parts = [send[lo:hi] for send in plan.sends.values()]
        mine = [self._receive[lo:hi]] if plan.is_local else []
        if plan.receives is None:
            own = self._staged(node.index, chunk)
            targets = [own[lo - chunk.start : hi - chunk.start], *mine]
        else:
            targets = [*mine, *(receive[lo:hi] for receive in plan.receives.values())]
        if self._cross is None:
            self._in_blocks(
                lo, targets, lambda block, a, b: plan.reduce([part[a:b] for part in parts], block)
            )
            return
        total = yield from self._cross.reduce(parts, plan.op)
        if targets:
            self._in_blocks(lo, targets, total.finish)

    def _in_blocks(
        self, begin: int, targets: Sequence[Buffer], make: Callable[[Buffer, int, int], None]
    ) -> None:
        """Make the first target, copy it to the other targets, and update, block by block.

        The targets hold the elements of the array from `begin` on.
        """
        first, *copies = targets
        step = BLOCK_BYTES // first.itemsize
        for lo in range(0, first.size, step):
            hi = min(lo + step, first.size)
            block = first[lo:hi]
            make(block, lo, hi)
            for copy in copies:
                copy[lo:hi] = block
            if self._apply is not None and self._plan.sharded_update:
                self._apply(begin + lo, begin + hi)

    def _copy_out(self, chunk: _Chunk) -> None:
        """Copy the peers' slices of a chunk from the staging memory of their owners."""
        if not self._plan.is_local:
            return
        for index, (lo, hi) in enumerate(self._slices(chunk)):
            if index == self._node.index:
                continue
            summed = self._staged(index, chunk)[lo - chunk.start : hi - chunk.start]
            move(self._receive[lo:hi], summed, self._receive.nbytes)


class _Chunk(NamedTuple):
    """Elements ``[start, stop)``, and the index of this chunk of the array."""

    chunk_index: int
    start: int
    stop: int
