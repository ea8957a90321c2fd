"""A reduction of one node, in memory that its ranks can all read.

It goes in slices: each rank sums its own straight out of its neighbours' arrays, in rank order, and
writes it where it is wanted.  One rule holds throughout: what another rank can read is written by
its owner before it enters the collective, or by the one rank whose slice it is while all are
inside.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ncclkv.comm.messages.algorithms import slices
from ncclkv.comm.messages.progress import Steps
from ncclkv.comm.shm.hierarchical import CrossNode
from ncclkv.comm.shm.in_order import OrderedCrossNode
from ncclkv.comm.shm.node import BLOCK_BYTES, Node
from ncclkv.comm.shm.plan import ReductionPlan
from ncclkv.comm.shm.sequence import DONE, ENTERED
from ncclkv.comm.shm.staging import HALF_BYTES
from ncclkv.comm.types import Apply, Buffer
from ncclkv.errors import OrderMismatch
from ncclkv.kernels.host.memory import move


class AllReduce:
    """One reduction, as one rank does it.

    Parameters
    ----------
    node : Node
    plan : Plan
        For these two arrays.
    send, receive : ndarray
    apply : callable or None
    between : Between or InOrder, optional
        The way to the other nodes, if there are any.
    """

    def __init__(
        self,
        node: Node,
        plan: ReductionPlan,
        send: Buffer,
        receive: Buffer,
        apply: Apply | None,
        between: CrossNode | OrderedCrossNode | None = None,
    ) -> None:
        self._node = node
        self._plan = plan
        self._between = between
        self._send, self._receive = send, receive
        self._apply = apply if plan.here else None
        self._turn = node.sequence.next_slot()

    def steps(self) -> Steps:
        """Take this rank's part."""
        self._node.halves.open(self._turn)
        return self._sliced() if self._between is None else self._told(self._between)

    def _told(self, between: CrossNode | OrderedCrossNode) -> Steps:
        """Do it, and tell of other calls all those who cannot see them."""
        try:
            yield from self._sliced()
        except OrderMismatch:
            self._turn.fail()
            between.refuse()
            raise

    def _sliced(self) -> Steps:
        """Sum slices of the arrays where they are, or of chunks that are copied."""
        plan, turn = self._plan, self._turn
        if not turn.is_free():
            yield turn.free()
        turn.write_header(plan.words)
        yield from self._meet(ENTERED)
        plan.resolve_peers(turn.notes())
        if plan.in_place and self._between is None:
            self._node.halves.decide(turn)
            plan.sum(self._receive, self._apply if self._plan.sharded_update else None)
        else:
            yield from self._in_chunks()
        turn.publish(DONE)
        if plan.receives is not None and not turn.all_reached(DONE):
            # Others write into this rank's array, or read it, until they are done.
            yield turn.stragglers(DONE)
        if self._apply is not None and not self._plan.sharded_update:
            self._apply(0, self._send.size)

    def _in_chunks(self) -> Steps:
        """Sum chunk after chunk, through copies of what cannot be reached or for other nodes."""
        node, turn, plan, count = self._node, self._turn, self._plan, self._send.size
        yield node.halves.undecided(turn)
        if not plan.in_place:
            yield node.halves.take(turn)
        node.halves.decide(turn)
        phase = ENTERED
        step = HALF_BYTES // self._send.itemsize
        for number, start in enumerate(range(0, count, step)):
            chunk = _Chunk(number, start, min(start + step, count))
            if plan.sends is None:
                self._half(node.index, chunk)[:] = self._send[start : chunk.stop]
                phase += 1
                yield from self._meet(phase)
            yield from self._sum(chunk)
            if plan.receives is None:
                phase += 1
                yield from self._meet(phase)
                self._copy_out(chunk)

    def _meet(self, phase: int) -> Steps:
        """Come to a phase, and wait for the others."""
        self._turn.publish(phase)
        if not self._turn.all_reached(phase):
            yield self._turn.stragglers(phase)

    def _half(self, index: int, chunk: _Chunk) -> Buffer:
        """A rank's copy of a chunk."""
        nbytes = (chunk.stop - chunk.start) * self._send.itemsize
        return self._node.halves.copy(index, chunk.number, nbytes).view(self._send.dtype)

    def _sum(self, chunk: _Chunk) -> Steps:
        """Sum this rank's slice of a chunk; with no place to write it to, into its own copy."""
        node, plan = self._node, self._plan
        if node.index >= node.owners:
            return
        lo, hi = chunk.slices(node.owners)[node.index]
        if plan.sends is None:
            copies = [self._half(each, chunk) for each in range(len(node.ranks))]
            parts = [copy[lo - chunk.start : hi - chunk.start] for copy in copies]
        else:
            parts = [send[lo:hi] for send in plan.sends.values()]
        if plan.receives is None:
            own = self._half(node.index, chunk)
            targets = [own[lo - chunk.start : hi - chunk.start]]
        else:
            mine = [self._receive] if plan.here else []
            targets = [receive[lo:hi] for receive in (*mine, *plan.receives.values())]
        apply = _shifted(self._apply, lo) if self._plan.sharded_update else None
        if self._between is None:
            self._in_blocks(targets, apply, lambda block, a, b: self._reduce(parts, block, a, b))
            return
        total = yield from self._between.reduce(parts, self._plan.op)
        if targets:
            self._in_blocks(targets, apply, lambda block, a, b: total.finish(block, a, b))

    def _reduce(self, parts: Sequence[Buffer], block: Buffer, lo: int, hi: int) -> None:
        self._plan.reduce([part[lo:hi] for part in parts], block)

    def _in_blocks(
        self,
        targets: Sequence[Buffer],
        apply: Apply | None,
        make: Callable[[Buffer, int, int], None],
    ) -> None:
        """Make the first target, copy it to the others, and update, block by block."""
        first, *others = targets
        step = BLOCK_BYTES // first.itemsize
        for lo in range(0, first.size, step):
            hi = min(lo + step, first.size)
            block = first[lo:hi]
            make(block, lo, hi)
            for other in others:
                other[lo:hi] = block
            if apply is not None:
                apply(lo, hi)

    def _copy_out(self, chunk: _Chunk) -> None:
        """Copy the slices of a chunk out of the copies that their owners summed them in."""
        if not self._plan.here:
            return
        for index, (lo, hi) in enumerate(chunk.slices(self._node.owners)):
            summed = self._half(index, chunk)[lo - chunk.start : hi - chunk.start]
            move(self._receive[lo:hi], summed, self._receive.nbytes)


@dataclass(frozen=True)
class _Chunk:
    """Elements ``[start, stop)``, and which chunk of the array this is."""

    number: int
    start: int
    stop: int

    def slices(self, owners: int) -> list[tuple[int, int]]:
        """The elements that each owner sums."""
        return [
            (self.start + lo, self.start + hi) for lo, hi in slices(self.stop - self.start, owners)
        ]


def _shifted(apply: Apply | None, by: int) -> Apply | None:
    """`apply` for ranges counted from element `by`."""
    return None if apply is None else lambda lo, hi: apply(by + lo, by + hi)
