"""Small allreduce on one node: every rank copies its array to staging memory and sums all copies.

A small sum takes microseconds, so each kind of reduction is prepared once and launched many times.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ncclkv import concurrency
from ncclkv.arrays.memory import address
from ncclkv.comm.messages.progress import HostWork
from ncclkv.comm.shm import header
from ncclkv.comm.shm.node import Node
from ncclkv.comm.shm.sequence import DONE, ENTERED
from ncclkv.comm.types import Apply, Buffer
from ncclkv.kernels.host import compiled
from ncclkv.kernels.host.compiled import COMPLETE, MAX_RANKS


class SmallAllReduce:
    """A kind of small reductions: one count of elements, dtype, op and root.

    Parameters
    ----------
    node : Node
    count : int
        Count of elements, in at most `INLINE_BYTES`.
    dtype : dtype
    op : str
    root : int, optional
        The one rank that receives; by default all do.

    Attributes
    ----------
    is_local : bool
        Whether this rank receives the sum.
    call : CollectiveHeader
    packed : (int, int)
        The two words of `call`.
    headers : list of list of int
        The words expected of each rank.
    copies : list of list of ndarray, shape (count,)
        For each slot of the ring, every rank's copy.
    tables : list of bytes or None
        For each slot, the addresses that `short_sum` takes; None if C makes no such sums.
    average : bool
    as_words : bool
        Whether C takes the arrays as words.
    """

    def __init__(
        self, node: Node, count: int, dtype: np.dtype[Any], op: str, root: int | None
    ) -> None:
        self.node = node
        self.is_local = root in (None, node.rank)
        self.count = count
        self.call = header.reduction(count * dtype.itemsize, dtype, op, root, sharded_update=False)
        self.packed = self.call.pack()
        self.headers = [list(self.packed)] * len(node.ranks)
        self.reduce = node.reducer(dtype, op)
        self.ring = node.ring(self.call.nbytes)
        self.copies = [
            [copy.view(dtype) for copy in self.ring.copies(position, self.call.nbytes)]
            for position in range(len(self.ring))
        ]
        in_c = root is None and compiled.sums(dtype, op) and len(node.ranks) <= MAX_RANKS
        self.tables = [self._table(copies) for copies in self.copies] if in_c else None
        self.average = op == "avg"
        self.as_words = in_c and compiled.words(self.copies[0][0]) is not self.copies[0][0]

    def _table(self, copies: Sequence[Buffer]) -> bytes:
        """Return the addresses of every rank's flags, headers and copy, for `short_sum`."""
        addresses = self.node.sequence.addresses
        rows = [(*rank, address(copy)) for rank, copy in zip(addresses, copies, strict=True)]
        return np.array(rows, np.uintp).tobytes()


class SmallAllReduceWork(HostWork):
    """A launched small reduction.

    Parameters
    ----------
    small : SmallAllReduce
    send, receive : ndarray, shape (small.count,)
    apply : callable or None
    """

    def __init__(
        self, small: SmallAllReduce, send: Buffer, receive: Buffer, apply: Apply | None
    ) -> None:
        self.what = small.call
        self._small = small
        if small.as_words:
            send, receive = compiled.words(send), compiled.words(receive)
        self._send, self._receive = send, receive
        self._apply = apply
        self._slot = small.node.sequence.next_slot()
        self._position, self._previous = small.ring.take(self._slot)
        self._entered = False

    def advance(self) -> bool:
        tables = self._small.tables
        if not (self._in_steps() if tables is None else self._in_c(tables[self._position])):
            return False
        if self._apply is not None and self._small.is_local:
            self._apply(0, self._small.count)
        # Release the arrays: the caller may hold this Work for long.
        del self._send, self._receive, self._apply
        return True

    def _in_steps(self) -> bool:
        """Advance as far as possible without waiting; return whether it is complete."""
        small, slot = self._small, self._slot
        copies = small.copies[self._position]
        if not self._entered:
            if not slot.is_free() or not (self._previous is None or self._previous.is_complete()):
                return False
            copies[small.node.index][...] = self._send
            slot.write_header(small.packed)
            slot.publish(ENTERED)
            self._entered = True
        if small.is_local:
            if not slot.all_reached(ENTERED):
                return False
            if not slot.headers_match(small.headers):
                header.check_all(small.call, small.node, slot.headers())
            small.reduce(copies, self._receive)
        slot.publish(DONE)
        return True

    @concurrency.shared_step("small sum: in C", writes=True)
    def _in_c(self, table: bytes) -> bool:
        """Run the phases that are left in one call of C; return False when peers are late."""
        small, slot, previous = self._small, self._slot, self._previous
        outcome = compiled.short_sum(
            table,
            small.node.index,
            slot.index,
            0 if previous is None else previous.index,
            slot.digest,
            *small.packed,
            self.progress.spin_limit,
            self._send,
            self._receive,
            small.average,
        )
        complete = outcome == COMPLETE
        if complete or (outcome and not self._entered):
            self._entered = True
            small.node.sequence.notify()
        elif self._entered and slot.all_reached(ENTERED):
            header.check_all(small.call, small.node, slot.headers())
        return complete

    def arrivals(self) -> dict[int, float]:
        return self._slot.arrivals()

    def blocked(self) -> bool:
        return self._entered and not self._slot.all_reached(ENTERED)

    def missing(self) -> set[int]:
        slot, previous = self._slot, self._previous
        if self._entered:
            pending = slot.stragglers(ENTERED)
        else:
            pending = [*slot.until_free(), *(previous.unfinished() if previous is not None else ())]
        return {rank for each in pending for rank in each.awaited()}
