"""`NodeSum`: a sum with one sender a node, whose ranks add their arrays before they are encoded.

The elements are cut into slices, one for each index on a node.  The rank of an index adds its slice
of the arrays of its node, in rank order and in float32, and encodes the sum.  Ranks of one index on
all nodes read each other's codes, and count them.  If the ranks of a node share the result, each
writes its slice.  Else each rank reads the packed counts of all slices of its node.  A root, or a
rank that receives a part of its own, reads the codes of its elements from all ranks instead.

Between many nodes long slices are summed in two steps, as in `CodedSum`.  A node of more ranks than
the smallest node has ranks without a slice.

The elements of largest magnitude are chosen by key, so their slices are cut between keys.  The
packed counts of a slice are then the payloads of all nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from ncclkv.comm.destinations import To
from ncclkv.comm.programs.decoded import Nodes, decoded
from ncclkv.comm.programs.decoding import PayloadSum
from ncclkv.comm.programs.extents import Extents
from ncclkv.comm.transport import Steps
from ncclkv.comm.types import Apply, Buffer
from ncclkv.comm.wire import Range, Wants, Wire, read_by, read_of


@dataclass(frozen=True)
class NodeSum:
    """A sum of encoded sums of nodes, as one rank makes it.

    Attributes
    ----------
    gradients : ndarray, shape (n,)
    encode : callable
        ``encode(parts)`` fills the payload with the codes of the sum of `parts`, this slice of the
        arrays of the ranks of the node.
    payload : ndarray of uint8
        The codes of this rank's slice.
    result : PayloadSum
        Writes the elements that this rank decodes.
    form : NodeForm
    packed : ndarray of uint8
        Memory for the packed sum of this rank's slice, if the form packs it.
    """

    gradients: Buffer
    encode: Callable[[Sequence[Buffer]], object]
    payload: Buffer
    result: PayloadSum
    form: NodeForm
    packed: Buffer

    def steps(self, wire: Wire, apply: Apply | None) -> Steps:
        """Make the sum."""
        form, rank = self.form, wire.rank
        if form.shared:
            wire.share_result()
        parts = yield from wire.read(self.gradients, form.gradients)
        if mine := [part for part in parts if part is not None]:
            self.encode(mine)
        codes = yield from wire.read(self.payload, form.codes)
        for bounds, ranks in form.counted(rank):
            payloads = [part for owner in ranks if (part := codes[owner]) is not None]
            if form.packs:
                self.result.pack(payloads, bounds, self.packed[slice(*form.place(rank))])
            else:
                self.result.write(payloads, bounds, apply)
        if form.packs:
            yield from self._write_packed(wire, apply)

    def _write_packed(self, wire: Wire, apply: Apply | None) -> Steps:
        """Read the packed counts of this rank's slice, or of all slices, and write their sums."""
        form, rank = self.form, wire.rank
        if form.two_steps:
            places = [self._place(owner, rank) for owner in range(wire.size)]
            yield from wire.read(self.packed[slice(*form.place(rank))], form.counts, places)
        if form.shared:
            self.result.write_packed(self.packed, form.slice_of(rank), apply)
            return
        found = yield from wire.read(self.packed, form.neighbours)
        for owner, part in enumerate(found):
            if part is not None:
                self.result.write_packed(part, form.slice_of(owner), apply)

    def _place(self, owner: int, rank: int) -> Buffer | None:
        """Return the part of the packed counts that a rank of the same index has counted."""
        if self.form.counts(rank, owner) is None:
            return None
        return self.packed[slice(*self.form.place(owner))]


@dataclass(frozen=True)
class NodeForm:
    """The elements that ranks encode and decode, and what they read for it: equal on all ranks.

    Attributes
    ----------
    extents : Extents
    itemsize : int
        Bytes of a gradient.
    nodes : sequence of sequence of int
        The ranks of each node.
    node_slices : sequence of (int, int)
        The slice of each index that has one; each begins where payloads may be cut.
    senders : frozenset of int
        The ranks whose arrays are in the sum.
    decoded : sequence of (int, int)
        The elements whose codes each rank counts.
    two_steps : bool
        Whether ranks of one index count a part of their slice each, and exchange the counts.
    shared : bool
        Whether no rank needs the counts of another slice.
    """

    extents: Extents
    itemsize: int
    nodes: Nodes
    node_slices: Sequence[Range]
    senders: frozenset[int]
    decoded: Sequence[Range]
    two_steps: bool
    shared: bool

    @property
    def packs(self) -> bool:
        """Return whether counts travel on, packed."""
        return self.two_steps or not self.shared

    @cached_property
    def sending(self) -> frozenset[int]:
        """The nodes that have a sender."""
        return frozenset(
            node for node, ranks in enumerate(self.nodes) if not self.senders.isdisjoint(ranks)
        )

    @cached_property
    def _places(self) -> dict[int, tuple[int, int]]:
        """The node of each rank, and its index there."""
        return places(self.nodes)

    def slice_of(self, rank: int) -> Range:
        """Return the elements that a rank encodes."""
        index = self._places[rank][1]
        return self.node_slices[index] if index < len(self.node_slices) else (0, 0)

    def counted(self, rank: int) -> Iterator[tuple[Range, Sequence[int]]]:
        """Yield ranges of the elements that a rank counts, and the ranks that have their codes."""
        for index, bounds in enumerate(self.node_slices):
            lo, hi = _common(bounds, self.decoded[rank])
            if lo < hi:
                yield (lo, hi), [ranks[index] for ranks in self.nodes]

    def longest(self, rank: int) -> int:
        """Return the most elements that a rank writes at once from the codes of nodes."""
        if self.packs:
            return 0
        return max((hi - lo for (lo, hi), _ in self.counted(rank)), default=0)

    # Reads

    def gradients(self, reader: int, owner: int) -> Range | None:
        """Return the elements of an owner's array that a reader adds: its slice, on its node."""
        bounds = self.slice_of(reader)
        if owner not in self.senders or not self._neighbours(reader, owner):
            return None
        return bounds if bounds[0] < bounds[1] else None

    def codes(self, reader: int, owner: int) -> Range | None:
        """Return the bytes of an owner's payload that a reader counts."""
        own, extents = self.slice_of(owner), self.extents
        lo, hi = _common(own, self.decoded[reader])
        if lo >= hi or self._places[owner][0] not in self.sending:
            return None
        begin, _ = extents.codes(own)
        first, end = extents.codes((lo, hi))
        return first - begin, end - begin

    def counts(self, reader: int, owner: int) -> Range | None:
        """Return the bytes of an owner's counts that a reader of its index needs: all of them."""
        (lo, hi), same = self.decoded[owner], self._places[reader][1] == self._places[owner][1]
        return (0, self.packed((lo, hi))) if same and lo < hi else None

    def neighbours(self, reader: int, owner: int) -> Range | None:
        """Return the bytes of the counts of an owner's slice that a rank of its node needs."""
        lo, hi = self.slice_of(owner)
        return (0, self.packed((lo, hi))) if self._neighbours(reader, owner) and lo < hi else None

    def _neighbours(self, reader: int, owner: int) -> bool:
        return self._places[reader][0] == self._places[owner][0]

    # Bytes

    def packed(self, bounds: Range) -> int:
        """Return the bytes of the packed counts of a range of a slice."""
        begin, end = self.extents.packed(bounds, len(self.sending))
        return end - begin

    def place(self, rank: int) -> Range:
        """Return the bytes of a slice's packed counts that a rank of its index counts."""
        (lo, hi), (first, _) = self.decoded[rank], self.slice_of(rank)
        return (self.packed((first, lo)), self.packed((first, hi))) if lo < hi else (0, 0)

    def sent(self, rank: int) -> int:
        """Return the bytes that other ranks read of a rank in a launch."""
        counts = [(self.counts, 1)] if self.two_steps else []
        reads = [*self._unplaced, *counts]
        return sum(read_of(rank, len(self.decoded), *read) for read in reads)

    def scratch(self, rank: int) -> int:
        """Return the most bytes that a rank reads of other ranks in a read without places."""
        return max(read_by(rank, len(self.decoded), *read) for read in self._unplaced)

    @property
    def _unplaced(self) -> Sequence[tuple[Wants, int]]:
        """The reads without places, each with the bytes of an element."""
        neighbours = [] if self.shared else [(self.neighbours, 1)]
        return [(self.gradients, self.itemsize), (self.codes, 1), *neighbours]


def node_form(
    extents: Extents,
    node_slices: Sequence[Range],
    senders: frozenset[int],
    to: To,
    nodes: Nodes,
    *,
    shared: bool,
    itemsize: int = 4,
) -> NodeForm:
    """Return the form of a sum over nodes.

    Parameters
    ----------
    extents : Extents
    node_slices : sequence of (int, int)
        As of `NodeForm`; together they have all elements.
    senders : frozenset of int
    to : To
    nodes : sequence of sequence of int
    shared : bool
        Whether the ranks of a node share the result.
    itemsize : int
        Bytes of a gradient.
    """
    place, count = places(nodes), max(hi for _, hi in node_slices)
    if to.divided or to.root is not None:
        own = decoded(count, 1, to, len(place), None).parts
        return NodeForm(extents, itemsize, nodes, node_slices, senders, own, False, True)
    parts = extents.divided(node_slices, len(nodes))
    own = []
    for node, index in (place[rank] for rank in sorted(place)):
        found = (0, 0)
        if index < len(node_slices):
            found = node_slices[index] if parts is None else parts[index][node]
        own.append(found)
    two_steps = parts is not None
    return NodeForm(extents, itemsize, nodes, node_slices, senders, own, two_steps, shared)


def places(nodes: Nodes) -> dict[int, tuple[int, int]]:
    """Return the node of each rank, and its index there.

    Examples
    --------
    >>> places([[0, 2], [1]])
    {0: (0, 0), 2: (0, 1), 1: (1, 0)}
    """
    return {
        rank: (node, index) for node, ranks in enumerate(nodes) for index, rank in enumerate(ranks)
    }


def _common(left: Range, right: Range) -> Range:
    """Return the elements of both ranges; the first is not below the second if there are none."""
    return max(left[0], right[0]), min(left[1], right[1])
