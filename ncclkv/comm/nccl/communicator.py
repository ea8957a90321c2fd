"""Communicator of GPUs: NCCL for buffers, a communicator of hosts for all other calls.

NCCL's own sums go to `Owners` by one ``ncclReduceScatter`` if their parts are equal, else by one
``ncclReduce`` an owner, in a group.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from itertools import accumulate, pairwise
from types import MappingProxyType
from typing import Any

import numpy as np

from ncclkv.comm import callbacks
from ncclkv.comm.base import Collective, Communicator, Graph, closed, left
from ncclkv.comm.control import ObjectComm
from ncclkv.comm.destinations import To, bounds_of
from ncclkv.comm.diagnosis import farewells
from ncclkv.comm.nccl import dtypes
from ncclkv.comm.nccl.binding import Binding, Handle, group, version_text
from ncclkv.comm.nccl.creation import create
from ncclkv.comm.nccl.diagnosis import look_for_lost
from ncclkv.comm.nccl.lifetime import Lifetime
from ncclkv.comm.nccl.messages import GpuMessages
from ncclkv.comm.nccl.progress import Enqueue, NcclProgress, Update
from ncclkv.comm.nccl.streams import Streams
from ncclkv.comm.nccl.watcher import Watcher
from ncclkv.comm.two_step import LEAST, wire_bytes
from ncclkv.comm.types import Apply, Buffer, DoneWork, WaitObserver, Work
from ncclkv.comm.wire import Program
from ncclkv.errors import CommAborted, KVStoreError, NotSupported, RankLost, UsageError
from ncclkv.kernels.base import Kernels
from ncclkv.tracebacks import public


class NcclCommunicator(Communicator):
    """Collectives of CuPy arrays, one GPU a rank; collective to create.

    A collective runs on the communication stream: after the earlier work of the current stream, and
    before the work that is put on the current stream after its `Work.wait`.  Only `synchronize`
    blocks the host.  `barrier`, `split`, `close` and `control` are collectives of the hosts.

    The arithmetic is NCCL's.  The order of a sum depends on the length, and 16-bit floats are
    rounded at each step; all ranks get the same bits.  An average is a sum divided by `size`,
    integers toward zero.  Values of float16 are multiplied by ``1 / size`` first.  If some
    ranks' elements are NaN, ``max`` and ``min`` may give another rank's element.  If `reproducible`
    is set, NCCL only moves arrays, and the arithmetic is the same as on hosts.  Averages of
    integers below 64 bits are always made so, because NCCL's sum would wrap.

    Parameters
    ----------
    peers : Communicator
        The same ranks in host memory; owned by this communicator.
    binding : Binding
    streams : Streams
        Streams of this rank's device; owned by this communicator.
    kernels : Kernels
        Kernels of the same device.
    settings : mapping of str to str
        Variables of NCCL, set in the environment only while NCCL reads them.
    watcher : Watcher, optional
        Polls the works in flight between calls; by default no thread does.
    shared : bool
        Several ranks use one GPU on purpose.
    """

    blocks = False
    _reproducible = False

    def __init__(
        self,
        peers: Communicator,
        binding: Binding,
        streams: Streams,
        kernels: Kernels,
        *,
        settings: Mapping[str, str] = MappingProxyType({}),
        watcher: Watcher | None = None,
        shared: bool = False,
    ) -> None:
        self.rank, self.size = peers.rank, peers.size
        self.local_rank, self.local_size = peers.local_rank, peers.local_size
        self.nodes = peers.nodes
        self.timeout = peers.timeout
        self.digest, self.calls = peers.digest, peers.calls
        self.name = f"{binding.name} ({version_text(binding.version())})"
        if shared:
            self.name += ", several ranks on one GPU"
        self.kernels = kernels
        self._peers = peers
        self._binding, self._streams = binding, streams
        handle = create(peers, binding, settings)
        self._lifetime = lifetime = Lifetime(peers, binding, streams, handle)
        self._progress = NcclProgress(lifetime, settings, watcher)
        self._progress.background.end_with(self)
        # Refers to no communicator: else one that is dropped would live until a collection.
        self._another: Callable[[Communicator], NcclCommunicator] = lambda peers: NcclCommunicator(
            peers,
            binding.another(peers.timeout),
            streams.another(),
            kernels,
            settings=settings,
            watcher=watcher,
            shared=shared,
        )
        self.lock, self.thread_multiple = peers.lock, peers.thread_multiple
        self._messages = GpuMessages(lifetime, kernels, self._progress)
        self.control = NcclObjectComm(lifetime, peers.control)
        self._closed = False

    @property
    def reproducible(self) -> bool:
        """Return whether all sums are made in rank order; collective to set.

        Setting it connects the ranks for messages.  In the first message NCCL would connect them
        without a deadline.
        """
        return self._reproducible

    @reproducible.setter
    def reproducible(self, wanted: bool) -> None:
        callbacks.refuse("reproducible = True")
        if wanted and self.size > 1:
            self._messages.connect()
        self._reproducible = wanted

    def observe_waits(self, observer: WaitObserver | None) -> None:
        self._peers.observe_waits(observer)
        self._progress.take_times(wanted=observer is not None)

    def lend(self) -> AbstractContextManager[None]:
        return self._peers.lend()

    def allocate(self, nbytes: int) -> Buffer:
        memory: Buffer = self._streams.allocate(nbytes)
        return memory

    def check(self, op: str, dtype: np.dtype[Any], what: str = "") -> None:
        dtypes.reduction(dtype, op, what)

    def sync_stream(self) -> None:
        self._progress.sync_stream()

    def use_device(self) -> Callable[[], None] | None:
        return self._streams.use_device()

    def reported(self, error: BaseException, call: str) -> KVStoreError | None:
        return self._streams.reported(error, call)

    def keep_alive(self, *objects: object) -> None:
        self._progress.keep_alive(objects)

    def on_comm_stream(self) -> AbstractContextManager[None]:
        return self._progress.on_comm_stream()

    def capture(self) -> AbstractContextManager[Graph]:
        if self._binding.uncaptured:
            raise NotSupported(
                f"{self._binding.name} cannot be captured: {self._binding.uncaptured}"
            )
        return self._progress.capture()

    def _check_memory(self, buffer: Any, to_write: bool) -> None:
        dtypes.check_device(buffer)

    def _reduction(
        self, send: Buffer, receive: Buffer, op: str, to: To, *, sharded_update: bool
    ) -> Collective:
        root = to.root
        arguments = dtypes.reduce_arguments(send, receive, send.size, self._wire_op(send, op))
        binding = self._binding

        def enqueue(handle: Handle, stream: int) -> None:
            if root is None:
                binding.all_reduce(handle, *arguments, stream)
            else:
                binding.reduce(handle, *arguments, root, stream)

        target = "all ranks" if root is None else f"rank {root}"
        what = f"a reduction of {send.nbytes} bytes to {target}"
        own = range(send.size if to.receives(self.rank) else 0)
        return self._sum(what, enqueue, send, receive, op, to, own)

    def _to_owners(self, send: Buffer, own: Buffer, op: str, to: To) -> Collective:
        parts = [send[lo:hi] for lo, hi in pairwise(bounds_of(to, send.size, self.size))]
        even = len({part.size for part in parts}) == 1
        wire_op = self._wire_op(send, op)
        whole = dtypes.reduce_arguments(send, own, own.size, wire_op)
        each = [dtypes.reduce_arguments(part, own, part.size, wire_op) for part in parts]

        def enqueue(handle: Handle, stream: int) -> None:
            if even:
                self._binding.reduce_scatter(handle, *whole, stream)
                return
            with group(self._binding):
                for root, part in enumerate(parts):
                    if part.size:
                        self._binding.reduce(handle, *each[root], root, stream)

        what = f"a reduce_scatter of {send.nbytes} bytes"
        elements = range(*to.part(self.rank, send.size))
        return self._sum(what, enqueue, send, own, op, to, elements)

    def _wire_op(self, send: Buffer, op: str) -> str:
        """Return the op of NCCL's part of a reduction."""
        return "sum" if dtypes.divides(send.dtype, op) else op

    def _sum(
        self,
        what: str,
        enqueue: Enqueue,
        send: Buffer,
        receive: Buffer,
        op: str,
        to: To,
        own: range,
    ) -> Collective:
        """Prepare a reduction, of which this rank receives and updates the elements `own`."""
        wraps = dtypes.wraps(send.dtype, op)

        def divided(handle: Handle, stream: int) -> None:
            enqueue(handle, stream)
            with self._streams.on(stream):
                self.kernels.divide(receive, self.size)

        divides = self.size > 1 and bool(own) and dtypes.divides(send.dtype, op)

        def start(apply: Apply | None) -> Work:
            update = partial(apply, own.start, own.stop) if apply is not None and own else None
            if (wraps or self.reproducible) and self.size > 1:
                self._messages.connect(f"{what} (connecting the ranks)")
                ordered, scratch = self._messages.reduction(send, receive, op, to)
                return self._launch(what, ordered, (send, receive, scratch), update)
            return self._launch(what, divided if divides else enqueue, (send, receive), update)

        return Collective(
            start, partial(wire_bytes, send.size, send.itemsize, to, self.rank, self.size, LEAST)
        )

    def _broadcast(self, buffer: Buffer, root: int) -> Work:
        arguments = dtypes.move_arguments(buffer, buffer, buffer.size)

        def enqueue(handle: Handle, stream: int) -> None:
            self._binding.broadcast(handle, *arguments, root, stream)

        what = f"a broadcast of {buffer.nbytes} bytes from rank {root}"
        return self._launch(what, enqueue, (buffer,))

    def _gather(self, send: Buffer, receive: Buffer, counts: Sequence[int]) -> Work:
        even = len(set(counts)) == 1
        ends = [0, *accumulate(counts)]

        def enqueue(handle: Handle, stream: int) -> None:
            if even:
                arguments = dtypes.move_arguments(send, receive, send.size)
                self._binding.all_gather(handle, *arguments, stream)
                return
            with group(self._binding):
                for root, (lo, hi) in enumerate(pairwise(ends)):
                    if lo < hi:
                        part = receive[lo:hi]
                        source = send if root == self.rank else part
                        arguments = dtypes.move_arguments(source, part, part.size)
                        self._binding.broadcast(handle, *arguments, root, stream)

        # Ranks compare the text of a captured collective, so it has no value of this rank alone.
        what = f"an allgather of {send.nbytes} bytes from each rank"
        if not even:
            what = f"an allgatherv of {receive.nbytes} bytes"
        return self._launch(what, enqueue, (receive, send))

    def _program(self, program: Program) -> Collective:
        what = str(program)

        def start(apply: Apply | None) -> Work:
            self._lifetime.check()
            self._messages.connect(f"{what} (connecting the ranks)")
            enqueue, scratch = self._messages.program(program, apply)
            return self._progress.launch(what, enqueue, None, *program.kept, apply, scratch)

        return Collective(start, program.sent, program.what)

    def _launch(
        self,
        what: str,
        enqueue: Enqueue,
        buffers: tuple[Buffer, ...],
        apply: Update | None = None,
    ) -> Work:
        """Launch a collective; an empty one is done at once, on all ranks alike."""
        self._lifetime.check()
        if buffers[0].size == 0:
            if apply is not None:
                callbacks.run(self._lifetime.who, apply)
            return DoneWork()
        return self._progress.launch(what, enqueue, apply, *buffers)

    def barrier(self) -> Work:
        callbacks.refuse("barrier")
        with self._lifetime:
            return HostBarrierWork(self._lifetime, self._peers.barrier())

    def split(self, color: int | None, key: int = 0) -> Communicator | None:
        callbacks.refuse("split")
        with self._lifetime:
            peers = self._peers.split(color, key)
        return None if peers is None else self._child(peers)

    def duplicate(self, timeout: float | None = None) -> Communicator:
        callbacks.refuse("duplicate")
        with self._lifetime:
            peers = self._peers.duplicate(timeout)
        return self._child(peers)

    def _child(self, peers: Communicator) -> NcclCommunicator:
        """Return a communicator of `peers` on the same device."""
        made = self._another(peers)
        made.reproducible = self.reproducible
        return made

    def left_ranks(self) -> dict[int, str]:
        with self.lock:
            return self._peers.left_ranks()

    def synchronize(self, timeout: float | None = None) -> None:
        self._progress.synchronize(timeout)

    def abort(self, reason: str) -> None:
        callbacks.refuse("abort")  # the rest of a callback would use a stream that is freed
        if not self._closed:
            self._closed = True
            with self.lock:
                self._peers.abort(reason)  # first, because the abort of NCCL may take seconds
            self._lifetime.fail(CommAborted(left(self.rank, self.size, reason)))
            self._streams.close()

    def close(self) -> None:
        if self._closed:
            return
        callbacks.refuse("close")
        self.synchronize()
        try:
            self.control.barrier("close")
        except RankLost as lost:
            farewells.forgive(lost)
            # The lost rank waits for no answer: this rank may leave too.
            self.abort(str(lost))
            return
        self._closed = True
        look = look_for_lost(self._peers, "NCCL freed the communicator")
        try:
            self._lifetime.destroy(UsageError(closed(self.rank, self.size)), look)
        except RankLost as lost:
            farewells.forgive(lost)
            self._peers.abort(str(lost))
            return
        except KVStoreError as error:
            self._peers.abort(str(error))
            raise
        finally:
            self._streams.close()
        with self.lock:
            self._peers.close()


class NcclObjectComm(ObjectComm):
    """Host objects through the communicator of hosts; a failure breaks the whole communicator."""

    def __init__(self, lifetime: Lifetime, control: ObjectComm) -> None:
        self.rank = control.rank
        self._lifetime = lifetime
        self._control = control

    def allgather(self, item: Any, label: str = "") -> list[Any]:
        callbacks.refuse("control.allgather")
        with self._lifetime:
            return self._control.allgather(item, label)

    def barrier(self, label: str = "") -> None:
        callbacks.refuse("control.barrier")
        with self._lifetime:
            self._control.barrier(label)


class HostBarrierWork(Work):
    """Collective of the hosts, whose failure breaks the whole communicator."""

    def __init__(self, lifetime: Lifetime, work: Work) -> None:
        self._lifetime = lifetime
        self._work = work

    @public
    def done(self) -> bool:
        callbacks.refuse("Work.done")
        self._work.label = self.label
        with self._lifetime:
            return self._work.done()

    @public
    def wait(self, timeout: float | None = None) -> None:
        callbacks.refuse("Work.wait")
        self._work.label = self.label
        with self._lifetime:
            self._work.wait(timeout)
