"""Messages between GPUs, and sums in rank order: NCCL moves arrays, and the kernels add them.

The order of NCCL's own sums depends on the length, the ranks, the machine and the version.  A sum
in rank order is a two-step sum with the host's arithmetic.  Each rank sends as many bytes as in a
ring allreduce.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from ncclkv.arrays.memory import address
from ncclkv.comm import two_step
from ncclkv.comm.nccl import dtypes
from ncclkv.comm.nccl.binding import Binding, Handle, group
from ncclkv.comm.nccl.progress import Enqueue, NcclProgress
from ncclkv.comm.nccl.streams import Streams
from ncclkv.comm.transport import Request
from ncclkv.comm.two_step import Limits
from ncclkv.comm.types import ALIGNMENT, Buffer, To
from ncclkv.errors import UsageError
from ncclkv.kernels.base import Kernels

SHORT_BYTES = 64 * 1024
"""Maximum length of an array that every receiver sums whole: a second exchange would cost more."""

SCRATCH_BYTES = 64 * 1024 * 1024
"""Approximate memory for the parts of the peers; longer arrays are reduced piece by piece."""


class _Queued(Request):
    """Message in the order of a stream, for which the host does not wait."""

    def done(self) -> bool:
        return True


@dataclass(frozen=True)
class StreamWire:
    """The messages of one collective on a stream: the `Wire` between GPUs.

    Attributes
    ----------
    rank : int
    peers : sequence of int
        All other ranks.
    binding : Binding
    handle : Handle
    streams : Streams
    stream : int
    kernels : Kernels
    memory : ndarray
        Scratch memory, in bytes.
    """

    rank: int
    peers: Sequence[int]
    binding: Binding
    handle: Handle
    streams: Streams
    stream: int
    kernels: Kernels
    memory: Buffer

    @property
    def size(self) -> int:
        return 1 + len(self.peers)

    @property
    def limits(self) -> Limits:
        return _limits()

    def scratch(self, nbytes: int) -> Buffer:
        return self.memory[:nbytes]

    def group(self) -> AbstractContextManager[None]:
        return group(self.binding)

    def send(self, data: Buffer, peer: int) -> Request:
        if data.size:
            self.binding.send(self.handle, *_message(data), peer, self.stream)
        return _Queued()

    def receive(self, into: Buffer, peer: int) -> Request:
        if into.size:
            self.binding.receive(self.handle, *_message(into), peer, self.stream)
        return _Queued()

    def fold(self, parts: Sequence[Buffer], total: Buffer, op: str) -> None:
        with self.streams.on(self.stream):
            self.kernels.reduce(parts, total, op)

    def copy(self, data: Buffer, into: Buffer) -> None:
        """Copy between arrays of this rank, unless they are the same memory."""
        if data.size and address(data) != address(into):
            with self.streams.on(self.stream):
                self.kernels.pack(data, into)


def _limits() -> Limits:
    """Return the sizes at which sums in rank order change."""
    return Limits(SHORT_BYTES, SCRATCH_BYTES, ALIGNMENT)


class GpuMessages:
    """The collectives of one communicator that are made of messages.

    Parameters
    ----------
    rank, size : int
    binding : Binding
    streams : Streams
    kernels : Kernels
    progress : NcclProgress
        Launches the collectives.
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
        self._connected = size == 1

    def connect(self, what: str = "connecting the ranks for messages") -> None:
        """Connect the ranks for messages, once; collective, with a deadline."""
        if self._connected:
            return
        if self._progress.graphs.recording is not None:
            raise UsageError(
                "capture: the ranks are not connected for messages, and cannot be in a capture; "
                "make the same step once before it"
            )
        self._connected = True
        scratch = self._streams.allocate(1 + len(self._peers))
        bytes_at = address(scratch), address(scratch) + 1

        def enqueue(handle: Handle, stream: int) -> None:
            self._binding.connect(handle, self._peers, bytes_at, stream)

        self._progress.launch(what, enqueue, None, scratch)

    def reduction(self, send: Buffer, receive: Buffer, op: str, to: To) -> tuple[Enqueue, Buffer]:
        """Return the function that puts a sum in rank order on a stream, and its scratch memory.

        The caller keeps the scratch memory alive until the sum is complete.  The next sum uses the
        same memory, later on the same stream.
        """
        count = two_step.scratch_count(send.size, send.itemsize, to, self._size, _limits())
        scratch = self._scratch(count * send.itemsize)
        order = [[rank] for rank in range(self._size)]

        def enqueue(handle: Handle, stream: int) -> None:
            wire = self._wire(handle, stream, scratch)
            for _ in two_step.reduce(wire, [send], order, receive, op, to):
                pass

        return enqueue, scratch

    def exchange(self, send: Sequence[Buffer], receive: Sequence[Buffer]) -> Enqueue:
        """Return the function that puts an all_to_all on a stream."""

        def enqueue(handle: Handle, stream: int) -> None:
            wire = self._wire(handle, stream, send[0])
            wire.copy(send[self._rank], receive[self._rank])
            for _ in two_step.all_to_all(wire, send, receive):
                pass

        return enqueue

    def _wire(self, handle: Handle, stream: int, memory: Buffer) -> StreamWire:
        """Return the messages of one launch."""
        return StreamWire(
            self._rank,
            self._peers,
            self._binding,
            handle,
            self._streams,
            stream,
            self._kernels,
            memory,
        )

    def _scratch(self, nbytes: int) -> Buffer:
        """Return scratch memory, which grows and is never freed."""
        if self._memory is None or self._memory.size < nbytes:
            if self._progress.graphs.recording is not None:
                raise UsageError(
                    f"capture: sums in rank order need {nbytes} bytes of scratch memory, and a "
                    f"capture cannot allocate; make the same step once before it"
                )
            self._memory = self._streams.allocate(nbytes)
        return self._memory


def _message(array: Buffer) -> tuple[int, int, int]:
    """Return address, count and dtype of an array, as `Binding.send` takes them."""
    nccl_type = dtypes.movement(array.dtype)
    return address(array), array.size * nccl_type.factor, nccl_type.dtype
