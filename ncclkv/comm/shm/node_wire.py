"""`NodeWire`: the wire of ranks that share memory; neighbours read each other's arrays in place.

In its k-th read each rank publishes where its array is, and then phase k.  All ranks of the node
wait for phase k, and read.  A short array is copied: the rank then waits for no reader.  A long
array that neighbours cannot map is sent to each.  Parts of other nodes are messages.

**Order.**  A rank makes its next read when it needs the parts of the last one no more.  So a rank
that has waited for phase k + 1 knows that nobody reads what it published in phase k.  The array
may then be written.  Read k + 2 uses the same words of the header, and the same copy.  If the last
array is read in place, or the result is shared, the program ends when all ranks are done.  A copy
may still be read after the program, and the next program uses other copies.

**Differing calls.**  The ranks of a node compare their headers in the first read, and each names
the difference itself.  A rank that has found a difference sends empty messages to other nodes: so
its first messages follow the comparison.  In later reads messages are under way while the rank
waits for its neighbours.  A rank that finds a difference in a message fails its slot, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager

from ncclkv.comm.messages.channel import Channel
from ncclkv.comm.shm import header
from ncclkv.comm.shm.copies import CopyPool
from ncclkv.comm.shm.header import CollectiveHeader, Place
from ncclkv.comm.shm.node import Node
from ncclkv.comm.shm.sequence import DONE, ENTERED, CollectiveSlot
from ncclkv.comm.transport import Request, Steps
from ncclkv.comm.types import Apply, Buffer
from ncclkv.comm.wire import Parts, Places, ProgramSteps, Read, Wants, Wire
from ncclkv.errors import OrderMismatch


class NodeWire(Wire):
    """The wire of one program, as one rank of a node has it.

    Parameters
    ----------
    node : Node
    slot : CollectiveSlot
        Taken at the launch, in the order of launches.
    call : CollectiveHeader
    channel : Channel
        Of all ranks.
    pool : CopyPool
    lengths : sequence of int
        The bytes of the first array of each rank of the node, if these may differ and are compared;
        by default none are.
    """

    def __init__(
        self,
        node: Node,
        slot: CollectiveSlot,
        call: CollectiveHeader,
        channel: Channel,
        pool: CopyPool,
        lengths: Sequence[int] = (),
    ) -> None:
        super().__init__(channel.rank, channel.size, channel.limits)
        self._node, self._slot, self._call = node, slot, call
        self._channel = channel
        self._lengths = lengths
        self._pool, self._copies = pool, pool.take()
        self._reads = 0
        self._compared = False
        self._lent = False  # whether neighbours read the array of the last read in place
        self._shares_result = False

    @property
    def nodes(self) -> Sequence[Sequence[int]]:
        return self._node.nodes

    def scratch(self, nbytes: int) -> Buffer:
        return self._channel.scratch(nbytes)

    def group(self) -> AbstractContextManager[None]:
        return self._channel.group()

    def send(self, data: Buffer, peer: int) -> Request:
        return self._channel.send(data, peer)

    def receive(self, into: Buffer, peer: int) -> Request:
        return self._channel.receive(into, peer)

    def fold(self, parts: Sequence[Buffer], total: Buffer, op: str) -> None:
        self._channel.fold(parts, total, op)

    def run(self, steps: ProgramSteps, apply: Apply | None) -> Steps:
        """Run a program to its end on all ranks of the node."""
        try:
            yield from steps(self, apply)
        except OrderMismatch:
            self._refuse()
            raise
        yield from self._enter()
        if not self._reads:
            # Else `Work.arrivals` would read the times of the collective that had the slot before.
            self._slot.write_header(header.write(self._call, None, None))
        self._slot.publish(DONE)
        self._pool.give_back(self._copies, self._slot)
        if (self._lent or self._shares_result) and not self._slot.all_reached(DONE):
            yield self._slot.stragglers(DONE)

    def share_result(self) -> None:
        self._shares_result = True

    def _enter(self) -> Steps:
        """Wait until all ranks are done with the collective that had this slot before."""
        if not self._reads and not self._slot.is_free():
            yield self._slot.until_free()

    def _refuse(self) -> None:
        """Fail the later reads of ranks that cannot see the difference themselves."""
        if self._compared or self._node.far:
            self._slot.fail()
        for peer in self._node.far:
            self._channel.refuse(peer)

    def read(self, own: Buffer, wants: Wants, into: Places = ()) -> Read:
        parts = Parts(self, own, wants, into)
        compared, turn = self._compared, self._reads % 2
        # The first messages follow the comparison: a refusal may have to take their place.
        pending = parts.exchange(self._node.far, self._node.far, self.scratch) if compared else []
        yield from self._enter()
        place = self._place(own)
        yield from self._publish(turn, place)
        if not compared:
            pending = parts.exchange(self._node.far, self._node.far, self.scratch)
        unmapped = self._find(parts, own, turn)
        readers = [*self._node.neighbours] if place is None else []
        pending += parts.exchange(readers, unmapped, self._copies.received)
        yield pending
        return parts.found

    def _place(self, own: Buffer) -> Place | None:
        """Return where neighbours find an array, or a copy of it; None if they cannot map it."""
        shared = self._node.shared_offset_of(own)
        copy = None if shared else self._copies.make(self._reads % 2, own)
        offset = shared or copy or self._node.offset_of(own)
        self._lent = copy is None and offset is not None
        return None if offset is None else Place(offset, shared is not None)

    def _publish(self, turn: int, place: Place | None) -> Steps:
        """Publish the place of this rank's array, and wait until all ranks have done so."""
        slot, phase = self._slot, ENTERED + self._reads
        if not self._reads:
            slot.write_header(header.write(self._call, None, None))
        slot.write_words(*header.place_words(turn, place))
        slot.publish(phase)
        self._reads += 1
        if not slot.all_reached(phase):
            yield slot.stragglers(phase)
        if not self._compared:
            header.check_all(self._call, self._node, slot.headers(), self._lengths)
            self._compared = True

    def _find(self, parts: Parts, own: Buffer, turn: int) -> list[int]:
        """Find the neighbours' parts that this rank can map; return the other neighbours."""
        headers, unmapped, size = self._slot.headers(), [], own.itemsize
        for peer, index in self._node.neighbours.items():
            lo, hi = parts.wanted(peer) or (0, 0)
            place = header.place(turn, headers[index])
            if place is None or lo == hi:
                unmapped.append(peer)  # an empty part is found without memory, and no message
            elif place.shared and self._is_at(parts.place(peer), place.offset.at + lo * size):
                parts.found[peer] = parts.place(peer)
            else:
                owner = 0 if place.shared else index
                memory = self._node.view(owner, place.offset, hi * size)
                part, into = memory[lo * size :].view(own.dtype), parts.place(peer)
                if into is not None:  # not the same memory, as `Wire.copy` has to find out
                    into[...] = part
                parts.found[peer] = part if into is None else into
        return unmapped

    def _is_at(self, array: Buffer | None, position: int) -> bool:
        """Return whether an array begins at a position of the memory that the node shares."""
        offset = None if array is None else self._node.shared_offset_of(array)
        return offset is not None and offset.at == position
