"""Messages between GPUs, and sums in rank order: NCCL moves arrays, and the kernels add them.

The order of NCCL's own sums depends on the length, the ranks, the machine and the version.  A sum
in rank order is a two-step sum with the host's arithmetic.  Each rank sends as many bytes as in a
ring allreduce.

Each rank receives all parts of its slice in one group of messages, reduces them in one kernel, and
sends the sum in another group.  So exchange and sum do not overlap.  An array of at most
`SHORT_BYTES` is sent whole to every rank that receives, and each reduces it.

The first step allocates the scratch memory, so that a later step can be captured.  Messages connect
the ranks at their first use, with a deadline.  The cost on several GPUs has not been measured.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import AbstractContextManager

from ncclkv.arrays.memory import address
from ncclkv.comm import callbacks, two_step
from ncclkv.comm.destinations import To
from ncclkv.comm.nccl import dtypes
from ncclkv.comm.nccl.binding import Handle, group
from ncclkv.comm.nccl.lifetime import Lifetime
from ncclkv.comm.nccl.progress import Enqueue, NcclProgress
from ncclkv.comm.transport import LocalRequest, Request, Steps
from ncclkv.comm.types import ALIGNMENT, Apply, Buffer
from ncclkv.comm.wire import Limits, Program, ProgramSteps, Wire, others
from ncclkv.errors import UsageError
from ncclkv.kernels.base import Kernels

SHORT_BYTES = 64 * 1024
"""Maximum length of an array that every receiver sums whole: a second exchange would cost more."""

SCRATCH_BYTES = 64 * 1024 * 1024
"""Approximate memory for the parts of the peers; longer arrays are reduced chunk by chunk."""


_QUEUED = LocalRequest()
"""A message in the order of a stream, for which the host does not wait."""


class StreamWire(Wire):
    """The messages of one collective on the current stream: the `Wire` between GPUs.

    Parameters
    ----------
    lifetime : Lifetime
        The communicator.
    kernels : Kernels
    stream : int
    memory : ndarray
        Scratch memory, in bytes.
    """

    def __init__(self, lifetime: Lifetime, kernels: Kernels, stream: int, memory: Buffer) -> None:
        super().__init__(lifetime.peers.rank, lifetime.peers.size, _limits())
        self._lifetime = lifetime
        self._kernels = kernels
        self._stream = stream
        self._memory = memory

    def scratch(self, nbytes: int) -> Buffer:
        if nbytes > self._memory.size:
            raise UsageError(
                f"a program needs {nbytes} bytes of scratch memory, and stated {self._memory.size} "
                f"with the room between parts; state more in 'scratch' of Communicator.program"
            )
        return self._memory[:nbytes]

    def group(self) -> AbstractContextManager[None]:
        return group(self._lifetime.binding)

    def send(self, data: Buffer, peer: int) -> Request:
        if data.size:
            lifetime = self._lifetime
            lifetime.binding.send(lifetime.handle, *_message(data), peer, self._stream)
        return _QUEUED

    def receive(self, into: Buffer, peer: int) -> Request:
        if into.size:
            lifetime = self._lifetime
            lifetime.binding.receive(lifetime.handle, *_message(into), peer, self._stream)
        return _QUEUED

    def fold(self, parts: Sequence[Buffer], total: Buffer, op: str) -> None:
        self._kernels.reduce(parts, total, op)

    def published(self, array: Buffer) -> Buffer:
        """Return the array: its messages are before later kernels in the order of the stream."""
        return array

    def copy(self, data: Buffer, into: Buffer) -> None:
        """Copy between arrays of this rank, unless they are the same memory."""
        if data.size and address(data) != address(into):
            self._kernels.pack(data, into)


def _limits() -> Limits:
    """Return the sizes at which sums in rank order change."""
    return Limits(SHORT_BYTES, SCRATCH_BYTES, ALIGNMENT)


class GpuMessages:
    """The collectives of one communicator that are made of messages.

    Parameters
    ----------
    lifetime : Lifetime
        The communicator.
    kernels : Kernels
    progress : NcclProgress
        Launches the collectives.
    """

    def __init__(self, lifetime: Lifetime, kernels: Kernels, progress: NcclProgress) -> None:
        self._lifetime = lifetime
        self._rank, self._size = lifetime.peers.rank, lifetime.peers.size
        self._kernels = kernels
        self._progress = progress
        self._memory: Buffer | None = None
        self._connected = self._size == 1

    def connect(self, what: str = "connecting the ranks for messages") -> None:
        """Connect the ranks for messages, once; collective, with a deadline.

        Meanwhile the other ranks are checked as in a wait for a collective.
        """
        if self._connected:
            return
        if self._lifetime.graphs.recording is not None:
            raise UsageError(
                "capture: the ranks are not connected for messages, and cannot be in a capture; "
                "make the same step once before it"
            )
        self._connected = True
        scratch = self._lifetime.streams.allocate(self._size)
        bytes_at = address(scratch), address(scratch) + 1
        peers = others(self._rank, self._size)

        with self._progress.looking(what) as look:

            def enqueue(handle: Handle, stream: int) -> None:
                self._lifetime.binding.connect(handle, peers, bytes_at, stream, look)

            self._progress.launch(what, enqueue, None, scratch)

    def reduction(self, send: Buffer, receive: Buffer, op: str, to: To) -> tuple[Enqueue, Buffer]:
        """Return the function that puts a sum in rank order on a stream, and its scratch memory.

        The caller keeps the scratch memory alive until the sum is complete.  The next sum uses the
        same memory, later on the same stream.
        """
        count = two_step.scratch_count(send.size, send.itemsize, to, self._size, _limits())
        order = [[rank] for rank in range(self._size)]

        def steps(wire: Wire, apply: Apply | None) -> Steps:
            return two_step.Sum(wire, [send], order, receive, op, to).steps()

        return self._on_stream(
            steps, None, self._scratch(count * send.itemsize, "sums in rank order")
        )

    def program(self, program: Program, apply: Apply | None) -> tuple[Enqueue, Buffer]:
        """Return the function that puts a program on a stream, and its scratch memory.

        As for `reduction`.
        """
        nbytes = program.scratch + self._size * ALIGNMENT
        scratch = self._scratch(nbytes, f"programs such as {program}")
        return self._on_stream(program.steps, apply, scratch)

    def _on_stream(
        self, steps: ProgramSteps, apply: Apply | None, scratch: Buffer
    ) -> tuple[Enqueue, Buffer]:
        """Return the function that takes all steps on a stream, and their scratch memory."""
        lifetime = self._lifetime

        def run(stream: int) -> None:
            with lifetime.streams.on(stream):
                deque(steps(StreamWire(lifetime, self._kernels, stream, scratch), apply), 0)

        return lambda handle, stream: callbacks.run(lifetime.who, run, stream), scratch

    def _scratch(self, nbytes: int, what: str) -> Buffer:
        """Return scratch memory for `what`, which grows and is never freed."""
        if self._memory is None or self._memory.size < nbytes:
            if self._lifetime.graphs.recording is not None:
                raise UsageError(
                    f"capture: {what} need {nbytes} bytes of scratch memory, and a capture "
                    f"cannot allocate; make the same step once before it"
                )
            self._memory = self._lifetime.streams.allocate(nbytes)
        return self._memory


def _message(array: Buffer) -> tuple[int, int, int]:
    """Return address, count and dtype of an array, as `Binding.send` takes them."""
    nccl_type = dtypes.movement(array.dtype)
    return address(array), array.size * nccl_type.factor, nccl_type.dtype
