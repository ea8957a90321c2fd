"""A reduction of one node, in memory that its ranks can all read.

It goes in slices: each rank sums its own straight out of its neighbours' arrays, in rank order, and
writes it where it is wanted.  One rule holds throughout: what another rank can read is written by
its owner before it enters the collective, or by the one rank whose slice it is while all are
inside.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ncclkv.comm.base import Apply, Buffer
from ncclkv.comm.node import note
from ncclkv.comm.node.between import Between
from ncclkv.comm.node.flags import DONE, ENTERED
from ncclkv.comm.node.node import HALF_BYTES, Node
from ncclkv.comm.schedule import slices
from ncclkv.comm.work import Steps
from ncclkv.errors import OrderMismatch
from ncclkv.kernels.base import Kernels

BLOCK_BYTES = 256 * 1024
"""A slice is summed, sent on and updated in blocks that stay in the cache."""


class Request(NamedTuple):
    """What is asked for: the arguments of `Communicator.reduce_apply`.

    Attributes
    ----------
    divided : bool
        Whether the ranks of a node update together: `apply` is called on each element by one of
        them, and `receive` is memory that all have in common, or gets this rank's slices alone.
    """

    send: Buffer
    receive: Buffer
    op: str
    apply: Apply | None
    root: int | None
    divided: bool

    def __str__(self) -> str:
        target = "all ranks" if self.root is None else f"rank {self.root}"
        return f"a reduction of {self.send.nbytes} bytes to {target}"


class Reduction:
    """One reduction, as one rank does it.

    Parameters
    ----------
    node : Node
    kernels : Kernels
    request : Request
    between : Between, optional
        The way to the other nodes, if there are any.
    """

    def __init__(
        self, node: Node, kernels: Kernels, request: Request, between: Between | None = None
    ) -> None:
        self._node = node
        self._kernels = kernels
        self._between = between
        self._send, self._receive = request.send, request.receive
        self._op, self._root, self._divided = request.op, request.root, request.divided
        self._here = request.root in (None, node.rank)
        self._apply = request.apply if self._here else None
        self._call = note.reduction(
            request.send.nbytes,
            request.send.dtype,
            request.op,
            request.root,
            divided=request.divided,
        )
        self._turn = node.flags.turn()

    def steps(self) -> Steps:
        """Take this rank's part."""
        self._node.open(self._turn)
        return self._sliced() if self._between is None else self._told(self._between)

    def _told(self, between: Between) -> Steps:
        """Do it, and tell of other calls all those who cannot see them."""
        try:
            yield from self._sliced()
        except OrderMismatch:
            self._turn.fail()
            between.refuse()
            raise

    def _sliced(self) -> Steps:
        """Sum slices of the arrays where they are, or of chunks that are copied."""
        node, turn, count = self._node, self._turn, self._send.size
        yield turn.free()
        receive = node.place(self._receive) if self._here and not self._divided else None
        turn.note(note.write(self._call, node.place(self._send), receive))
        yield from self._meet(ENTERED)
        yield node.undecided(turn)
        sends, receives = self._views(turn.notes())
        phase = ENTERED
        in_place = sends is not None and receives is not None
        if not in_place:
            yield node.take_halves(turn)
        node.decide(turn)
        step = HALF_BYTES // self._send.itemsize
        if in_place and self._between is None:
            step = max(count, 1)
        for number, start in enumerate(range(0, count, step)):
            chunk = _Chunk(number, start, min(start + step, count))
            if sends is None:
                self._half(node.index, chunk)[:] = self._send[start : chunk.stop]
                phase += 1
                yield from self._meet(phase)
            yield from self._sum(chunk, sends, receives)
            if receives is None:
                phase += 1
                yield from self._meet(phase)
                self._copy_out(chunk)
        turn.reach(DONE)
        if receives is not None:
            # Others write into this rank's array, or read it, until they are done.
            yield turn.behind(DONE)
        if self._apply is not None and not self._divided:
            self._apply(0, count)

    def _meet(self, phase: int) -> Steps:
        """Come to a phase, and wait for the others."""
        self._turn.reach(phase)
        yield self._turn.behind(phase)

    def _views(
        self, notes: Sequence[Sequence[int]]
    ) -> tuple[list[Buffer] | None, list[Buffer] | None]:
        """All ranks' arrays to read, and those to write the sum into; None where they cannot be."""
        node, send, receive = self._node, self._send, self._receive
        note.check_all(self._call, node, notes)
        places = [note.places(text) for text in notes]
        everyone = range(len(node.ranks))
        sends = node.views([(each, places[each][0]) for each in everyone], send)
        if self._divided:
            return sends, [receive]
        if self._root is None:
            wanted = [node.index, *(each for each in everyone if each != node.index)]
        else:
            wanted = [each for each in everyone if node.ranks[each] == self._root]
        return sends, node.views([(each, places[each][1]) for each in wanted], receive)

    def _half(self, index: int, chunk: _Chunk) -> Buffer:
        """A rank's copy of a chunk."""
        nbytes = (chunk.stop - chunk.start) * self._send.itemsize
        return self._node.half(index, chunk.number, nbytes).view(self._send.dtype)

    def _sum(
        self, chunk: _Chunk, sends: Sequence[Buffer] | None, receives: Sequence[Buffer] | None
    ) -> Steps:
        """Sum this rank's slice of a chunk; with no place to write it to, into its own copy."""
        node = self._node
        if node.index >= node.owners:
            return
        lo, hi = chunk.slices(node.owners)[node.index]
        if sends is None:
            copies = [self._half(each, chunk) for each in range(len(node.ranks))]
            parts = [copy[lo - chunk.start : hi - chunk.start] for copy in copies]
        else:
            parts = [send[lo:hi] for send in sends]
        if receives is None:
            own = self._half(node.index, chunk)
            targets = [own[lo - chunk.start : hi - chunk.start]]
        else:
            targets = [receive[lo:hi] for receive in receives]
        apply = _shifted(self._apply, lo) if self._divided else None
        if self._between is None:
            self._in_blocks(targets, apply, lambda block, a, b: self._reduce(parts, block, a, b))
            return
        total = yield from self._between.reduce(parts, self._op)
        if targets:
            self._in_blocks(targets, apply, lambda block, a, b: total.finish(block, a, b))

    def _reduce(self, parts: Sequence[Buffer], block: Buffer, lo: int, hi: int) -> None:
        self._kernels.reduce([part[lo:hi] for part in parts], block, self._op)

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
        if not self._here:
            return
        for index, (lo, hi) in enumerate(chunk.slices(self._node.owners)):
            summed = self._half(index, chunk)
            self._receive[lo:hi] = summed[lo - chunk.start : hi - chunk.start]


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
