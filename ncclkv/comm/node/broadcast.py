"""A broadcast on one node: each copies the root's array where it is, or copies of it."""

from __future__ import annotations

from ncclkv.comm.base import Buffer
from ncclkv.comm.node import note
from ncclkv.comm.node.flags import DONE, ENTERED
from ncclkv.comm.node.node import HALF_BYTES, INLINE_BYTES, Node
from ncclkv.comm.work import Steps


class Broadcast:
    """One broadcast, as one rank does it.

    Parameters
    ----------
    node : Node
    buffer : ndarray
        The root's is copied into every other rank's.
    root : int
    """

    def __init__(self, node: Node, buffer: Buffer, root: int) -> None:
        self._node = node
        self._bytes = buffer.view("u1")
        self._root = root
        self._call = note.broadcast(buffer, root)
        self._turn = node.flags.turn()

    def steps(self) -> Steps:
        """Take this rank's part."""
        node, turn = self._node, self._turn
        short = self._bytes.size <= INLINE_BYTES
        slot, before = node.take_inline(turn) if short else (-1, None)
        place = None if short else node.place(self._bytes)
        yield [*turn.free(), *(before.unfinished() if before is not None else ())]
        turn.note(note.write(self._call, place, None))
        if node.rank != self._root:
            yield from self._receive(slot)
        elif short:
            node.inline(node.index, slot, self._bytes.size)[:] = self._bytes
        elif place is not None:
            turn.reach(ENTERED)
            yield turn.behind(DONE)
        else:
            yield from self._send_copies()
        turn.reach(DONE)

    def _send_copies(self) -> Steps:
        """Copy chunk after chunk to where all can read it."""
        node, turn = self._node, self._turn
        node.open(turn)
        yield node.undecided(turn)
        yield node.take_halves(turn)
        node.decide(turn)
        for number, start in enumerate(range(0, self._bytes.size, HALF_BYTES)):
            if number > 1:
                yield turn.behind(ENTERED + number - 1)
            chunk = self._bytes[start : start + HALF_BYTES]
            node.half(node.index, number, chunk.size)[:] = chunk
            turn.reach(ENTERED + number)

    def _receive(self, slot: int) -> Steps:
        """Copy what the root has made readable."""
        node, turn, nbytes = self._node, self._turn, self._bytes.size
        root = node.ranks.index(self._root)
        yield turn.waiting_for(self._root, ENTERED)
        text = turn.notes()[root]
        note.check(self._call, node.rank, self._root, text)
        place = note.places(text)[0]
        if slot >= 0:
            self._bytes[:] = node.inline(root, slot, nbytes)
        elif place is not None:
            self._bytes[:] = node.view(root, place, nbytes)
        else:
            for number, start in enumerate(range(0, nbytes, HALF_BYTES)):
                yield turn.waiting_for(self._root, ENTERED + number)
                chunk = self._bytes[start : start + HALF_BYTES]
                chunk[:] = node.half(root, number, chunk.size)
                turn.reach(ENTERED + number + 1)
