"""The communicator of hosts: collectives in the memory of a node, and messages over any transport.

On one node that shares memory, all collectives of buffers go through that memory, except
`all_to_all`, and allgathers of long arrays that neighbours cannot map.  Host objects are always
messages.  Programs read the memory of their node, and exchange messages between nodes
(`ncclkv.comm.shm.node_wire`).

Across nodes a long reduction goes through the memory of each node, and a slice is exchanged between
the ranks of one index (`ncclkv.comm.shm.hierarchical`).  In a long sum to `Owners` the rank of
index i on a node reduces the parts of all owners of index i.  If nodes differ in size, all ranks
exchange messages instead.  A long broadcast goes by messages to one rank of each node, and the
others copy from it.  An allgather into memory that a node shares writes each part once a node
(`ncclkv.comm.gather`).  Short reductions and broadcasts, other allgathers, barriers and
every `all_to_all` are messages between all ranks.  `SHORT_BYTES` of `ncclkv.comm.messages.channel`
separates short from long.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from ncclkv.comm import callbacks
from ncclkv.comm.base import Collective, Communicator, closed, left
from ncclkv.comm.buffers import check_color, check_in_place
from ncclkv.comm.control import ObjectComm
from ncclkv.comm.destinations import EVERYONE, To, bounds_of
from ncclkv.comm.diagnosis import farewells
from ncclkv.comm.diagnosis.flight_recorder import FlightRecorder
from ncclkv.comm.diagnosis.mismatch import CallComparison
from ncclkv.comm.diagnosis.roster import meet
from ncclkv.comm.gather import Gather
from ncclkv.comm.host.reductions import Reductions
from ncclkv.comm.messages import algorithms
from ncclkv.comm.messages.channel import SHORT_BYTES, Channel, limits
from ncclkv.comm.messages.progress import ProgressEngine, StepWork
from ncclkv.comm.messages.tags import TagPool
from ncclkv.comm.shm import header, hierarchical
from ncclkv.comm.shm.broadcast import Broadcast
from ncclkv.comm.shm.copies import CopyPool
from ncclkv.comm.shm.hierarchical import CrossNode
from ncclkv.comm.shm.node import Node
from ncclkv.comm.shm.node_wire import NodeWire
from ncclkv.comm.shm.reduce_scatter import barrier, reduce_scatter
from ncclkv.comm.shm.setup import Sharing, setup_node
from ncclkv.comm.transport import Steps, Transport
from ncclkv.comm.two_step import wire_bytes
from ncclkv.comm.types import Apply, Buffer, WaitObserver, Work
from ncclkv.comm.wire import Program, ProgramSteps
from ncclkv.errors import CommAborted, LaunchError, RankLost, UsageError
from ncclkv.kernels.host import HostKernels
from ncclkv.tracebacks import trim


class HostObjectComm(ObjectComm):
    """Host objects, pickled, over the transport of a communicator, in tags of their own."""

    def __init__(self, transport: Transport, progress: ProgressEngine) -> None:
        self.rank = transport.rank
        self._tags = TagPool(transport, progress, offset=1)

    def allgather(self, item: Any, label: str = "") -> list[Any]:
        callbacks.refuse("control.allgather")
        own = np.frombuffer(pickle.dumps(item), np.uint8)
        received: list[Buffer] = []
        self._tags.launch(
            lambda channel: algorithms.gather_bytes(channel, own, received),
            "an exchange of objects",
            label,
        ).wait()
        return [pickle.loads(part.data) for part in received]

    def barrier(self, label: str = "", timeout: float | None = None) -> None:
        callbacks.refuse("control.barrier")
        self._tags.launch(algorithms.barrier, header.BARRIER, label).wait(timeout)


class HostCommunicator(Communicator):
    """Collectives in host memory over a `Transport`.

    Parameters
    ----------
    transport : Transport
    timeout : float
        Seconds that a wait may take.
    share : bool
        Whether the ranks of a node share memory, if they can.
    among : ObjectComm, optional
        Of the same ranks, for their agreement on shared memory; by default this communicator's.

    Attributes
    ----------
    sharing : Sharing
        That agreement, with the reasons against faster ways.
    """

    calls: CallComparison
    sharing = Sharing(None)
    _copies: CopyPool

    def __init__(
        self,
        transport: Transport,
        timeout: float,
        *,
        share: bool = False,
        among: ObjectComm | None = None,
    ) -> None:
        self.rank, self.size = transport.rank, transport.size
        self.local_rank, self.local_size = transport.node.index(self.rank), len(transport.node)
        self.name = transport.name
        self.timeout = timeout
        self.kernels = HostKernels()
        self._transport = transport
        self._progress = ProgressEngine(transport, timeout)
        self.calls, self.digest = self._progress.calls, self._progress.digest
        self.lock, self.thread_multiple = self._progress.lock, transport.thread_multiple
        self._tags = TagPool(transport, self._progress, offset=0)
        self.control: HostObjectComm = HostObjectComm(transport, self._progress)
        self._node = self._share_memory(among or self.control) if share else None
        self._progress.multi_node = share and (self._node is None or len(self._node.nodes) > 1)
        if self._node is not None:
            self.first_node = 0 in self._node.ranks
            self._node.sequence.digest = self.digest
            self._copies = CopyPool(self._node)
            self._progress.calls.recorder = FlightRecorder(transport.rank, self._node.pages)
        if share:
            self._progress.calls.recorder.announce()
        self._reductions = Reductions(self.rank, self.size, self._node, self._progress, self._tags)
        self._closed = False

    def _share_memory(self, control: ObjectComm) -> Node | None:
        """Return this rank's node; None if the ranks share no memory."""
        try:
            roster = self._progress.calls.roster = meet(self._transport, control)
        except LaunchError:  # on all ranks alike
            self._transport.close()
            raise
        self._progress.calls.store, self.nodes = roster.name, roster.nodes
        self.sharing = setup_node(self._transport, control, roster)
        return self.sharing.node

    def observe_waits(self, observer: WaitObserver | None) -> None:
        self._progress.observer = observer

    def lend(self) -> AbstractContextManager[None]:
        return self._progress.lend()

    def allocate(self, nbytes: int) -> Buffer:
        memory = None if self._node is None else self._node.allocate(nbytes)
        return super().allocate(nbytes) if memory is None else memory

    def node_shared(self, nbytes: int) -> Buffer | None:
        callbacks.refuse("node_shared")
        return None if self._node is None else self._node.node_shared(nbytes)

    def rolling_back_node_shared(self) -> AbstractContextManager[None]:
        return nullcontext() if self._node is None else self._node.rolling_back_node_shared()

    def reduction(
        self,
        send: Buffer,
        receive: Buffer,
        op: str = "sum",
        *,
        to: To = EVERYONE,
        sharded_update: bool = False,
    ) -> Collective:
        try:
            found = self._reductions.find(
                send, receive, op, to, sharded=sharded_update, ordered=self.reproducible
            )
            return found or super().reduction(
                send, receive, op, to=to, sharded_update=sharded_update
            )
        except Exception as error:
            trim(error)
            raise

    def _reduction(
        self, send: Buffer, receive: Buffer, op: str, to: To, *, sharded_update: bool
    ) -> Collective:
        return self._reductions.prepare(
            send, receive, op, to, sharded=sharded_update, ordered=self.reproducible
        )

    def _to_owners(self, send: Buffer, own: Buffer, op: str, to: To) -> Collective:
        bounds = bounds_of(to, send.size, self.size)
        call, ordered = header.reduce_scatter(send, op, bounds), self.reproducible
        node = self._node
        if node is not None and len(node.nodes) > 1:
            # The ranks of one index on each node share the work, so every node needs all indices.
            even = node.owners * len(node.nodes) == self.size
            node = node if even and send.nbytes > SHORT_BYTES else None

        def start(apply: Apply | None) -> Work:
            def across_nodes(channel: Channel) -> Steps:
                if node is None:
                    return algorithms.reduction(channel, send, own, op, to, apply)
                cross = CrossNode(node, channel, to, ordered=ordered)
                return reduce_scatter(node, call, send, own, bounds, apply, cross)

            def on_node(node: Node) -> Steps:
                return reduce_scatter(node, call, send, own, bounds, apply)

            return self._start(call, on_node, across_nodes)

        if node is None:
            ranks = self.rank, self.size, limits(self.size)
            return Collective(start, partial(wire_bytes, send.size, send.itemsize, to, *ranks))
        array = node, send.size, send.dtype, op
        sent = partial(hierarchical.wire_bytes, *array, to, sharded=True, ordered=ordered)
        return Collective(start, sent)

    def _broadcast(self, buffer: Buffer, root: int) -> Work:
        node, call = self._node, header.broadcast(buffer, root)

        def across_nodes(channel: Channel) -> Steps:
            if node is None or buffer.nbytes <= SHORT_BYTES:
                return algorithms.broadcast(channel, buffer, root)
            return Broadcast(node, call, buffer, channel).steps()

        return self._start(call, lambda node: Broadcast(node, call, buffer).steps(), across_nodes)

    def _gather(self, send: Buffer, receive: Buffer, counts: Sequence[int]) -> Work:
        call, ends = header.allgather(send, counts), [0, *accumulate(counts)]
        parts = [receive[lo:hi] for lo, hi in pairwise(ends)]
        node = self._node
        shared = node is not None and node.is_node_shared(receive)
        if shared:
            check_in_place(send, parts[self.rank])
        if node is not None and (shared or len(node.nodes) == 1):
            gather = Gather(send, parts, self.nodes if shared else None)
            lengths = [parts[rank].nbytes for rank in node.ranks]
            return self._launch_in_node(node, call, gather.steps, lengths=lengths)
        # A program sends no empty message, and these compare the lengths of ranks on all nodes.
        return self._tags.launch(lambda channel: algorithms.gather(channel, send, parts), call)

    def _program(self, program: Program) -> Collective:
        call, node = header.program(program.what, program.nbytes), self._node

        def start(apply: Apply | None) -> Work:
            if node is not None:
                return self._launch_in_node(node, call, program.steps, apply, mark=call.mark())
            return self._tags.launch(
                lambda channel: program.steps(channel, apply), call, mark=call.mark()
            )

        return Collective(start, program.sent, program.what)

    def _launch_in_node(
        self,
        node: Node,
        call: header.CollectiveHeader,
        steps: ProgramSteps,
        apply: Apply | None = None,
        *,
        mark: int = 0,
        lengths: Sequence[int] = (),
    ) -> Work:
        """Launch a program over a `NodeWire`; `lengths` are as for `NodeWire`."""
        # Taken here: the steps may begin later on this rank than on its neighbours.
        slot, copies = node.sequence.next_slot(), self._copies

        def run(channel: Channel) -> Steps:
            return NodeWire(node, slot, call, channel, copies, lengths).run(steps, apply)

        return self._tags.launch(run, call, mark=mark, arrivals=slot.arrivals)

    def barrier(self) -> Work:
        callbacks.refuse("barrier")
        return self._start(header.BARRIER, barrier, algorithms.barrier)

    def _start(
        self,
        call: header.CollectiveHeader,
        shared: Callable[[Node], Steps],
        sent: Callable[[Channel], Steps],
    ) -> Work:
        """Launch a collective: in memory where all ranks share it, or else as messages."""
        if self._node is None or len(self._node.nodes) > 1:
            return self._tags.launch(sent, call)
        return self._progress.launch(StepWork(shared(self._node), call))

    def split(self, color: int | None, key: int = 0) -> Communicator | None:
        callbacks.refuse("split")
        check_color(color, key)
        # Numbered from 0, with the ranks to leave out as a group of their own, which is closed.
        colors = sorted(
            {other for other in self.control.allgather(color, "split") if other is not None}
        )
        index = len(colors) if color is None else colors.index(color)
        transport = self._transport.split(index, key)
        if color is None:
            transport.close()
            return None
        part = HostCommunicator(transport, self.timeout, share=True)
        part.reproducible = self.reproducible
        return part

    def duplicate(self, timeout: float | None = None) -> Communicator:
        callbacks.refuse("duplicate")
        limit = self.timeout if timeout is None else timeout
        self.control.barrier("duplicate", limit)
        transport = self._transport.split(0, self.rank)
        twin = HostCommunicator(transport, limit, share=True, among=self.control)
        twin.reproducible = self.reproducible
        return twin

    def left_ranks(self) -> dict[int, str]:
        return dict(self._transport.left_ranks())

    def abort(self, reason: str) -> None:
        if not self._closed:
            self._closed = True
            self._progress.end(CommAborted(left(self.rank, self.size, reason)))
            self._transport.leave(reason)
            if self._node is not None:
                self._node.close()

    def close(self) -> None:
        if self._closed:
            return
        callbacks.refuse("close")
        self._progress.calls.recorder.mark_closing()
        try:
            self.control.barrier("close")
        except RankLost as lost:
            farewells.forgive(lost)  # the lost rank needs nothing more, and close moves no data
            self.abort(str(lost))
        else:
            self._closed = True
            self._progress.end(UsageError(closed(self.rank, self.size)))
            # Requests of slow ranks are received, and dropped: MPI would keep them otherwise.
            self._transport.left_ranks()
            self._transport.close()
            if self._node is not None:
                self._node.close()
