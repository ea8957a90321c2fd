"""Short reductions of one node: every rank copies its array to where all can read it, and sums all.

They are over in less time than Python takes for much else, so all that can be is prepared: once for
each kind of reduction, and not for each that is made.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ncclkv.arrays.memory import address
from ncclkv.comm.messages.progress import HostWork
from ncclkv.comm.shm import header
from ncclkv.comm.shm.node import Node
from ncclkv.comm.shm.sequence import DONE, ENTERED
from ncclkv.comm.types import Apply, Buffer
from ncclkv.kernels.host import compiled
from ncclkv.kernels.host.compiled import COMPLETE, MOST_RANKS


class SmallAllReduce:
    """One kind of short reductions: of so many elements, by one op, to one root or to all.

    Parameters
    ----------
    node : Node
    count : int
        Elements; at most `INLINE_BYTES`.
    dtype : dtype
    op : str
    root : int, optional

    Attributes
    ----------
    copies : list of list of ndarray, shape (count,)
        For each place of the ring, every rank's copy.
    tables : list of bytes or None
        The same for `short_sum`; None where that does not make such sums.
    """

    def __init__(
        self, node: Node, count: int, dtype: np.dtype[Any], op: str, root: int | None
    ) -> None:
        self.node = node
        self.here = root in (None, node.rank)
        self.count = count
        self.call = header.reduction(count * dtype.itemsize, dtype, op, root, sharded_update=False)
        self.words = self.call.pack()
        self.headers = [list(self.words)] * len(node.ranks)
        self.reduce = node.reducer(dtype, op)
        self.ring = node.ring(self.call.nbytes)
        self.copies = [
            [copy.view(dtype) for copy in self.ring.copies(slot, self.call.nbytes)]
            for slot in range(len(self.ring))
        ]
        in_c = root is None and compiled.sums(dtype, op) and len(node.ranks) <= MOST_RANKS
        self.tables = [self._table(copies) for copies in self.copies] if in_c else None
        self.average = op == "avg"

    def _table(self, copies: Sequence[Buffer]) -> bytes:
        """The addresses of what every rank shares for a sum, for `short_sum`."""
        addresses = self.node.sequence.addresses
        rows = [(*rank, address(copy)) for rank, copy in zip(addresses, copies, strict=True)]
        return np.array(rows, np.uintp).tobytes()


class SmallAllReduceWork(HostWork):
    """A short reduction under way.

    Parameters
    ----------
    short : Short
    send, receive : ndarray, shape (short.count,)
    apply : callable or None
    """

    eager = True

    def __init__(
        self, short: SmallAllReduce, send: Buffer, receive: Buffer, apply: Apply | None
    ) -> None:
        self.what = short.call
        self._short = short
        self._send, self._receive = send, receive
        self._apply = apply
        self._turn = short.node.sequence.next_slot()
        self._slot, self._before = short.ring.take(self._turn)
        self._entered = False

    def advance(self) -> bool:
        tables = self._short.tables
        if tables is not None and not self._entered:
            over = self._in_c(tables[self._slot])
        else:
            over = self._in_steps()
        if not over:
            return False
        if self._apply is not None and self._short.here:
            self._apply(0, self._short.count)
        # Release the arrays: the caller may hold this Work for long.
        del self._send, self._receive, self._apply
        return True

    def _in_steps(self) -> bool:
        """Do what can be done."""
        short, turn = self._short, self._turn
        copies = short.copies[self._slot]
        if not self._entered:
            if not turn.is_free() or not (self._before is None or self._before.is_over()):
                return False
            copies[short.node.index][...] = self._send
            turn.write_header(short.words)
            turn.publish(ENTERED)
            self._entered = True
        if short.here:
            if not turn.all_reached(ENTERED):
                return False
            if not turn.headers_match(short.headers):
                header.check_all(short.call, short.node, turn.headers())
            short.reduce(copies, self._receive)
        turn.publish(DONE)
        return True

    def _in_c(self, table: bytes) -> bool:
        """Do all of it in one call, if the others come within a moment."""
        short, flags = self._short, self._short.node.sequence
        outcome = compiled.short_sum(
            table,
            short.node.index,
            *self._turn.meeting(self._before),
            *short.words,
            self.progress.spin_limit,
            self._send,
            self._receive,
            short.average,
        )
        if outcome:
            self._entered = True
            flags.notify()
        return outcome == COMPLETE

    def arrivals(self) -> dict[int, float]:
        return self._turn.arrivals()

    def blocked(self) -> bool:
        return self._entered and not self._turn.all_reached(ENTERED)

    def missing(self) -> set[int]:
        turn, before = self._turn, self._before
        if self._entered:
            late = turn.stragglers(ENTERED)
        else:
            late = [*turn.free(), *(before.unfinished() if before is not None else ())]
        return {rank for each in late for rank in each.awaited()}
