"""Ordered reductions: NCCL moves the parts, and a kernel of the store reduces them in rank order.

The order of NCCL's own sums depends on the length, the ranks, the machine and the version.  Here
each rank receives its share of all arrays, reduces it in rank order with the host's arithmetic, and
sends the result to the others.  Each rank sends as many bytes as in a ring allreduce.  A short
array is gathered whole instead, and every rank reduces it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from ncclkv.arrays.memory import address
from ncclkv.comm.messages.two_step import slices
from ncclkv.comm.nccl import dtypes
from ncclkv.comm.nccl.binding import Binding, Handle
from ncclkv.comm.nccl.progress import Enqueue, NcclProgress
from ncclkv.comm.nccl.streams import Streams
from ncclkv.comm.types import ALIGNMENT, Buffer
from ncclkv.errors import UsageError
from ncclkv.kernels.base import Kernels

SHORT_BYTES = 64 * 1024
"""Longest array that is gathered whole: a second exchange would cost more than it saves."""

SCRATCH_BYTES = 64 * 1024 * 1024
"""Memory for the parts of the peers, nearly; a longer array is reduced piece by piece."""


class OrderedReduce:
    """Reductions in rank order of one communicator.

    Parameters
    ----------
    rank, size : int
    binding : Binding
    streams : Streams
    kernels : Kernels
    progress : NcclProgress
        Launches the reductions.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        binding: Binding,
        streams: Streams,
        kernels: Kernels,
        progress: NcclProgress,
    ) -> None:
        self._rank, self._size = rank, size
        self._peers = [(rank + step) % size for step in range(1, size)]
        self._binding = binding
        self._streams = streams
        self._kernels = kernels
        self._progress = progress
        self._memory: Buffer | None = None
        self._connected = False

    def connect(self) -> None:
        """Connect the ranks for messages, once; collective, with a deadline."""
        if self._connected:
            return
        self._connected = True
        scratch = self._streams.allocate(1 + len(self._peers))
        places = address(scratch), address(scratch) + 1

        def enqueue(handle: Handle, stream: int) -> None:
            self._binding.connect(handle, self._peers, places, stream)

        self._progress.launch("connecting the ranks for messages", enqueue, None, scratch)

    def reduce(
        self, send: Buffer, receive: Buffer, op: str, root: int | None
    ) -> tuple[Enqueue, Buffer]:
        """Return the function that puts a reduction on a stream, and its scratch memory.

        The caller keeps the scratch memory alive until the reduction is complete.  The next
        reduction uses the same memory, later on the same stream.
        """
        if send.nbytes <= SHORT_BYTES:
            scratch = self._scratch(send, send.size * self._size)
            return partial(self._reduce_short, send, receive, op, root, scratch), scratch
        pieces = _cut(send.size, send.itemsize, _count(send))
        longest = max(hi - lo for lo, hi in pieces)
        share = max(hi - lo for lo, hi in _cut(longest, send.itemsize, self._size))
        scratch = self._scratch(send, share * len(self._peers))
        return partial(self._reduce_long, send, receive, op, root, scratch, pieces), scratch

    def reduce_scatter(self, send: Buffer, receive: Buffer, op: str) -> tuple[Enqueue, Buffer]:
        """Return the same for a reduction of which each rank keeps its part."""
        pieces = _cut(receive.size, send.itemsize, _count(send))
        scratch = self._scratch(send, max(hi - lo for lo, hi in pieces) * len(self._peers))
        return partial(self._reduce_scatter, send, receive, op, scratch, pieces), scratch

    def _scratch(self, like: Buffer, count: int) -> Buffer:
        """Return scratch memory for `count` elements; it grows and is never freed."""
        nbytes = count * like.itemsize
        if self._memory is None or self._memory.size < nbytes:
            if self._progress.graphs.recording is not None:
                raise UsageError(
                    f"capture: sums in rank order need {nbytes} bytes to work in, and nothing can "
                    f"be allocated in a capture; make the same step once before it"
                )
            self._memory = self._streams.allocate(nbytes)
        return self._memory[:nbytes].view(like.dtype)

    def _reduce_short(
        self,
        send: Buffer,
        receive: Buffer,
        op: str,
        root: int | None,
        scratch: Buffer,
        handle: Handle,
        stream: int,
    ) -> None:
        """Gather the arrays of all ranks; the receiving ranks reduce them."""
        way = dtypes.movement(send.dtype)
        count = send.size * way.factor
        self._binding.all_gather(handle, address(send), address(scratch), count, way.dtype, stream)
        if root in (None, self._rank):
            parts = [scratch[lo : lo + send.size] for lo in range(0, scratch.size, send.size)]
            self._sum(parts, receive, op, stream)

    def _reduce_long(
        self,
        send: Buffer,
        receive: Buffer,
        op: str,
        root: int | None,
        scratch: Buffer,
        pieces: Sequence[tuple[int, int]],
        handle: Handle,
        stream: int,
    ) -> None:
        """Reduce this rank's share of each piece, and send it to the receiving ranks."""
        for lo, hi in pieces:
            shares = [slice(lo + a, lo + b) for a, b in _cut(hi - lo, send.itemsize, self._size)]
            parts = self._swap(handle, stream, [send[share] for share in shares], scratch)
            sums = [receive[share] for share in shares]
            own = sums[self._rank]
            self._sum(parts, own, op, stream)
            with self._group():
                for peer in self._peers:
                    if root in (None, peer):
                        self._send(handle, own, peer, stream)
                    if root in (None, self._rank):
                        self._receive(handle, sums[peer], peer, stream)

    def _reduce_scatter(
        self,
        send: Buffer,
        receive: Buffer,
        op: str,
        scratch: Buffer,
        pieces: Sequence[tuple[int, int]],
        handle: Handle,
        stream: int,
    ) -> None:
        """Reduce each piece of the part that this rank keeps."""
        parts = send.reshape(self._size, -1)
        for lo, hi in pieces:
            arrived = self._swap(handle, stream, [part[lo:hi] for part in parts], scratch)
            self._sum(arrived, receive[lo:hi], op, stream)

    def _swap(
        self, handle: Handle, stream: int, shares: Sequence[Buffer], scratch: Buffer
    ) -> list[Buffer]:
        """Exchange shares; return the parts of this rank's share, in rank order."""
        parts = list(shares)
        own = shares[self._rank].size
        with self._group():
            for slot, peer in enumerate(self._peers):
                parts[peer] = scratch[slot * own : (slot + 1) * own]
                self._receive(handle, parts[peer], peer, stream)
                self._send(handle, shares[peer], peer, stream)
        return parts

    def _sum(self, parts: Sequence[Buffer], total: Buffer, op: str, stream: int) -> None:
        """Reduce the received parts, later on the same stream."""
        with self._streams.on(stream):
            self._kernels.reduce(parts, total, op)

    @contextmanager
    def _group(self) -> Iterator[None]:
        """Group the messages of a block, so that none waits for another."""
        self._binding.group_start()
        try:
            yield
        finally:
            self._binding.group_end()

    def _send(self, handle: Handle, data: Buffer, peer: int, stream: int) -> None:
        if data.size:
            way = dtypes.movement(data.dtype)
            count = data.size * way.factor
            self._binding.send(handle, address(data), count, way.dtype, peer, stream)

    def _receive(self, handle: Handle, into: Buffer, peer: int, stream: int) -> None:
        if into.size:
            way = dtypes.movement(into.dtype)
            count = into.size * way.factor
            self._binding.receive(handle, address(into), count, way.dtype, peer, stream)


def _count(send: Buffer) -> int:
    """Return the number of pieces of an array."""
    return max(1, -(-send.nbytes // SCRATCH_BYTES))


def _cut(count: int, itemsize: int, parts: int) -> list[tuple[int, int]]:
    """Cut ``[0, count)`` into parts of nearly equal length that begin at aligned elements.

    Examples
    --------
    >>> _cut(1000, 4, 4)
    [(0, 256), (256, 512), (512, 768), (768, 1000)]
    """
    unit = ALIGNMENT // itemsize
    units = slices(-(-count // unit), parts)
    return [(min(lo * unit, count), min(hi * unit, count)) for lo, hi in units]
