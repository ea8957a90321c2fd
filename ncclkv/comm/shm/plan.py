"""What a rank does in a reduction of arrays that all ranks of its node can reach.

Programs reduce the same arrays again and again.  Where they lie, and how this rank's slice of them
is cut into blocks, is found the first time and kept as long as all ranks say the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ncclkv.comm.messages.algorithms import slices
from ncclkv.comm.shm import header
from ncclkv.comm.shm.allocator import Offset
from ncclkv.comm.shm.node import BLOCK_BYTES, Node
from ncclkv.comm.types import Apply, Buffer
from ncclkv.kernels.host.compiled import STREAM_BYTES


class ReductionCall(NamedTuple):
    """What is asked for: the arguments of `Communicator.reduce_apply`.

    Attributes
    ----------
    sharded_update : bool
        Whether the ranks of a node update together: `apply` is called on each element by one of
        them, and `receive` is memory that all have in common, or gets this rank's slices alone.
    """

    send: Buffer
    receive: Buffer
    op: str
    apply: Apply | None
    root: int | None
    sharded_update: bool

    @property
    def call(self) -> header.CollectiveHeader:
        """What all ranks have alike."""
        send, op, root = self.send, self.op, self.root
        return header.reduction(
            send.nbytes, send.dtype, op, root, sharded_update=self.sharded_update
        )


class _Block(NamedTuple):
    """Elements ``[lo, hi)``: every rank's part, and where else than in `receive` the sum goes."""

    lo: int
    hi: int
    parts: Sequence[Buffer]
    others: Sequence[Buffer]


class ReductionPlan:
    """A reduction of two arrays of this rank's; it refers to neither.

    Parameters
    ----------
    node : Node
    request : Request

    Attributes
    ----------
    op : str
    sharded_update : bool
    reduce : Reducer
        What sums parts of a block.
    here : bool
        Whether this rank gets the sum.
    call : Call
    words : sequence of int
        This rank's note.
    sends : dict of ndarray or None
        Every rank's array, by its place on the node, when `look` found that all can be reached.
    receives : dict of ndarray or None
        Other ranks' arrays for the sum, when it found that these can be.
    """

    def __init__(self, node: Node, request: ReductionCall) -> None:
        send = request.send
        self._node = node
        self._count, self._dtype = send.size, send.dtype
        self.op, self._root, self.sharded_update = request.op, request.root, request.sharded_update
        self.reduce = node.reducer(send.dtype, request.op)
        self.here = request.root in (None, node.rank)
        self.call = request.call
        receive = node.place(request.receive) if self.here and not request.sharded_update else None
        self.words = header.write(self.call, node.place(send), receive)
        self.sends: dict[int, Buffer] | None = None
        self.receives: dict[int, Buffer] | None = None
        self._notes: list[list[int]] = []
        self._blocks: list[_Block] = []

    def resolve_peers(self, notes: list[list[int]]) -> None:
        """Find the arrays that all ranks have told of.

        Raises
        ------
        OrderMismatch
            When one has told of another call.
        """
        # The marks go on from call to call, and places stay.
        places = [words[1:] for words in notes]
        if places == self._notes and len({words[0] for words in notes}) == 1:
            return
        node = self._node
        header.check_all(self.call, node, notes)
        both = [header.places(words) for words in notes]
        self.sends = self._views({index: send for index, (send, _) in enumerate(both)})
        targets = {index: receive for index, (_, receive) in enumerate(both) if self._gets(index)}
        self.receives = self._views(targets)
        if self.receives is not None:
            # Into this rank's own array it writes without a view.
            self.receives.pop(node.index, None)
        self._blocks = self._cut()
        self._notes = places

    def _gets(self, index: int) -> bool:
        """Whether a rank of the node has an array that others write the sum into."""
        return not self.sharded_update and self._root in (None, self._node.ranks[index])

    def _views(self, places: dict[int, Offset | None]) -> dict[int, Buffer] | None:
        """The arrays of some ranks; None when one of them cannot be reached."""
        nbytes, dtype = self._count * self._dtype.itemsize, self._dtype
        views = {}
        for index, place in places.items():
            if place is None:
                return None
            views[index] = self._node.view(index, place, nbytes).view(dtype)
        return views

    def _cut(self) -> list[_Block]:
        """The blocks of this rank's slice; none when arrays cannot be reached."""
        node = self._node
        if self.sends is None or self.receives is None or node.index >= node.owners:
            return []
        first, last = slices(self._count, node.owners)[node.index]
        step = BLOCK_BYTES // self._dtype.itemsize
        blocks = []
        for lo in range(first, last, step):
            hi = min(lo + step, last)
            parts = [send[lo:hi] for send in self.sends.values()]
            others = [receive[lo:hi] for receive in self.receives.values()]
            blocks.append(_Block(lo, hi, parts, others))
        return blocks

    @property
    def in_place(self) -> bool:
        """Whether all arrays can be read and written where they are."""
        return self.sends is not None and self.receives is not None

    def sum(self, receive: Buffer, apply: Apply | None) -> None:
        """Sum this rank's slice, block by block, to where it is wanted; update each block."""
        nbytes = self._count * self._dtype.itemsize
        # A block that is read at once, to be copied or to update by, is not sent past the caches.
        stream = nbytes >= STREAM_BYTES and not self.receives and apply is None
        for lo, hi, parts, others in self._blocks:
            block = receive[lo:hi] if self.here else others[0]
            self.reduce(parts, block, stream)
            if self.here:
                for other in others:
                    other[...] = block
            if apply is not None:
                apply(lo, hi)
