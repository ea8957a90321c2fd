"""`CodedSum`: a sum of encoded arrays, which ranks exchange as payloads of codes.

There are two forms.  *To all*: each rank reads the codes of its elements from all ranks, and
decodes their sum.  *Two steps*, if every rank receives all elements: each rank reads the codes of
its slice, and adds them as integers; then all ranks read these packed counts.  No form loses more
than the encoding does, and both give the same bits.

The form that sends fewer bytes is taken: to all for a few ranks, and for ranks of a node that share
their result, of which each decodes a slice.  Short arrays are sent to all, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ncclkv.comm.destinations import To
from ncclkv.comm.programs.decoded import Nodes, decoded
from ncclkv.comm.programs.decoding import Decoding
from ncclkv.comm.programs.extents import Words
from ncclkv.comm.transport import Steps
from ncclkv.comm.types import Apply, Buffer
from ncclkv.comm.wire import Range, Wants, Wire, read_by, read_of
from ncclkv.compress.base import CountedCodec
from ncclkv.compress.coding import Coding, HostCoding
from ncclkv.compress.entries import Padding


@dataclass(frozen=True)
class CodedSum:
    """A sum of encoded arrays, as one rank makes it.

    Attributes
    ----------
    codec : CountedCodec
    encode : callable or None
        Fills the payload, at the launch; None on a rank that sends nothing.
    payload : ndarray of uint8, shape (codec.nbytes(n),)
    padding : Padding
        The elements that are not encoded: their sum is 0.
    receive : ndarray of float32, shape (n,)
        Receives the elements of the sum that this rank decodes.
    form : Form
        Which codes and counts the ranks read.
    divides : bool
        Whether the result is the sum divided by the count of senders.
    packed : ndarray of uint8
        Memory for the packed counts of this rank's slice, if the form takes two steps.
    coding : Coding
        The arithmetic in the memory of the arrays.
    """

    codec: CountedCodec
    encode: Callable[[], object] | None
    payload: Buffer
    padding: Padding
    receive: Buffer
    form: Form
    divides: bool
    packed: Buffer
    coding: Coding = field(default_factory=HostCoding)

    def steps(self, wire: Wire, apply: Apply | None) -> Steps:
        """Make the sum."""
        if self.encode is not None:
            self.encode()
        form, senders = self.form, len(self.form.senders)
        if form.shared:
            wire.share_result()
        divisor = senders if self.divides else None
        decoding = Decoding(self.codec, senders, self.padding, self.receive, divisor, self.coding)
        own = form.decoded[wire.rank]
        parts = yield from wire.read(self.payload, form.codes)
        codes = [part for part in parts if part is not None]
        if not form.two_steps:
            decoding.write(codes, own, apply)
            return
        decoding.pack(codes, own, self.packed)
        parts = yield from wire.read(self.packed, form.counts)
        for bounds, part in zip(form.decoded, parts, strict=True):
            if part is not None:
                decoding.write_packed(part, bounds, apply)


@dataclass(frozen=True)
class Form:
    """The elements that ranks decode, and the bytes that they read for it: equal on all ranks.

    Attributes
    ----------
    codec : CountedCodec
    senders : frozenset of int
    decoded : sequence of (int, int)
        The elements of each rank; in two steps, those whose codes the rank counts.
    two_steps : bool
    shared : bool
        Whether the ranks of a node share the result.
    """

    codec: CountedCodec
    senders: frozenset[int]
    decoded: Sequence[Range]
    two_steps: bool
    shared: bool

    def codes(self, reader: int, owner: int) -> Range | None:
        """Return the bytes of an owner's payload that a reader needs."""
        lo, hi = self.decoded[reader]
        if lo == hi or owner not in self.senders:
            return None
        return Words(self.codec).codes((lo, hi))

    def counts(self, reader: int, owner: int) -> Range | None:
        """Return the bytes of an owner's packed counts that a reader needs: all of them."""
        lo, hi = self.decoded[owner]
        return None if lo == hi else (0, self.packed(hi - lo))

    def packed(self, count: int) -> int:
        """Return the bytes of the packed counts of as many elements."""
        return self.codec.packed_nbytes(count, len(self.senders))

    @property
    def _reads(self) -> Sequence[Wants]:
        """The reads of the program."""
        return [self.codes, self.counts] if self.two_steps else [self.codes]

    def sent(self, rank: int) -> int:
        """Return the bytes that other ranks read of a rank in a launch."""
        return sum(read_of(rank, len(self.decoded), read) for read in self._reads)

    def scratch(self, rank: int) -> int:
        """Return the most bytes that a rank reads of other ranks in a read."""
        return max(read_by(rank, len(self.decoded), read) for read in self._reads)


def form_of(
    codec: CountedCodec,
    count: int,
    senders: frozenset[int],
    to: To,
    size: int,
    nodes: Nodes | None,
) -> Form:
    """Return the form of a sum of `count` elements over `size` ranks.

    Parameters
    ----------
    codec : CountedCodec
    count : int
    senders : frozenset of int
    to : To
    size : int
    nodes : sequence of sequence of int, or None
        The ranks of each node, if the ranks of a node share the result.
    """
    parts, shared = decoded(count, codec.unit, to, size, nodes)
    everywhere = not (to.divided or shared or to.root is not None)
    divided = Words(codec).divided([(0, count)], size) if everywhere else None
    if divided is not None:
        (parts,) = divided
    return Form(codec, senders, parts, divided is not None, shared)
