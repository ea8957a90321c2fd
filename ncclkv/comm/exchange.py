"""The communicator of hosts: schedules of messages over any transport."""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any

import numpy as np

from ncclkv.comm import schedule
from ncclkv.comm.base import Apply, Buffer, Communicator, Control, Work
from ncclkv.comm.buffers import (
    allocate,
    check_buffer,
    check_buffers,
    check_color,
    check_host,
    check_op,
    check_pair,
    check_root,
)
from ncclkv.comm.ended import closed, left
from ncclkv.comm.node.between import Between
from ncclkv.comm.node.broadcast import Broadcast
from ncclkv.comm.node.form import form
from ncclkv.comm.node.known import Known, Make
from ncclkv.comm.node.node import INLINE_BYTES, Node
from ncclkv.comm.node.plan import Plan, Request
from ncclkv.comm.node.reduce import Reduction
from ncclkv.comm.node.short import Short, ShortReduction
from ncclkv.comm.schedule import SHORT_BYTES, Lane
from ncclkv.comm.transport import Transport
from ncclkv.comm.work import Flight, HostWork, Steps, StepWork
from ncclkv.errors import CommAborted, LaunchError, RankLost, UsageError
from ncclkv.kernels.host import HostKernels

# Tags go round, for MPI may allow none above 32767: the collective that had a tag before is waited
# for, so that no two in flight share one.
_TAGS = 8192
_FIRST_TAG = 16


class _Scratch:
    """Memory that one collective at a time receives its parts into; grows and stays."""

    def __init__(self) -> None:
        self._space = np.empty(0, np.uint8)

    def __call__(self, nbytes: int) -> Buffer:
        if self._space.size < nbytes:
            self._space = allocate(nbytes)
        return self._space[:nbytes]


class _Lanes:
    """Hands every collective a lane of its own."""

    def __init__(self, transport: Transport, flight: Flight, offset: int) -> None:
        self._transport = transport
        self._flight = flight
        self._tags = (_FIRST_TAG + offset + 2 * (number % _TAGS) for number in count())
        self._holders: deque[StepWork] = deque()
        self._spare: list[_Scratch] = []
        self._kernels = HostKernels()

    def launch(self, steps: Callable[[Lane], Steps], what: object, label: str = "") -> StepWork:
        """Start the collective that `steps` makes of a lane."""
        if len(self._holders) == _TAGS:
            self._holders.popleft().wait()
        work = self._flight.launch(StepWork(self._run(steps, next(self._tags)), what))
        self._holders.append(work)
        work.label = label
        return work

    def _run(self, steps: Callable[[Lane], Steps], tag: int) -> Steps:
        """The collective's steps, with scratch memory that is handed on at their end."""
        scratch = self._spare.pop() if self._spare else _Scratch()
        yield from steps(Lane(self._transport, tag, self._kernels, scratch))
        self._spare.append(scratch)


class ExchangeControl(Control):
    """Host objects, pickled, over the transport of a communicator, in tags of their own."""

    def __init__(self, transport: Transport, flight: Flight) -> None:
        self._rank = transport.rank
        self._lanes = _Lanes(transport, flight, offset=1)

    def allgather(self, item: Any, label: str = "") -> list[Any]:
        own = np.frombuffer(pickle.dumps(item), np.uint8)
        received: list[Buffer] = []
        self._lanes.launch(
            lambda lane: schedule.exchange(lane, own, received), "an exchange of objects", label
        ).wait()
        return [pickle.loads(part.data) for part in received]

    def broadcast(self, item: Any, root: int = 0, label: str = "") -> Any:
        return self.allgather(item if self._rank == root else None, label)[root]

    def barrier(self, label: str = "", timeout: float | None = None) -> None:
        self._lanes.launch(schedule.barrier, "a barrier", label).wait(timeout)


class ExchangeCommunicator(Communicator):
    """Collectives in host memory over a `Transport`.

    Parameters
    ----------
    transport : Transport
    timeout : float
        Seconds that a wait may take.
    share : bool
        Whether the ranks of a node share memory, where they can.
    among : Control, optional
        Of the same ranks, who agree on that through it; by default their own.
    """

    def __init__(
        self,
        transport: Transport,
        timeout: float,
        *,
        share: bool = False,
        among: Control | None = None,
    ) -> None:
        self.rank, self.size = transport.rank, transport.size
        self.local_rank = transport.node.index(transport.rank)
        self.local_size = len(transport.node)
        self.name = transport.name
        self.timeout = timeout
        self.kernels = HostKernels()
        self._transport = transport
        self._flight = Flight(transport, timeout)
        self._lanes = _Lanes(transport, self._flight, offset=0)
        self.control: ExchangeControl = ExchangeControl(transport, self._flight)
        self._node = self._form(among or self.control) if share else None
        self._flight.relayed = self._node is not None and len(self._node.nodes) > 1
        self._shorts: dict[tuple[int, np.dtype[Any], str, int | None], Short] = {}
        self._known = Known()
        self._closed = False

    def _form(self, control: Control) -> Node | None:
        """The memory that this rank's node shares, if it does."""
        try:
            return form(self._transport, control)
        except LaunchError:  # on all ranks alike
            self._transport.close()
            raise

    def allocate(self, nbytes: int) -> Buffer:
        memory = None if self._node is None else self._node.allocate(nbytes)
        return allocate(nbytes) if memory is None else memory

    def common(self, nbytes: int) -> Buffer | None:
        return None if self._node is None else self._node.common(nbytes)

    def check(self, op: str, dtype: np.dtype[Any], what: str = "") -> None:
        check_op(op, dtype, what)

    def allreduce(self, send: Buffer, receive: Buffer, op: str = "sum") -> Work:
        return self.reduce_apply(send, receive, op, None)

    def reduce(self, send: Buffer, receive: Buffer, op: str = "sum", root: int = 0) -> Work:
        return self.reduce_apply(send, receive, op, None, root)

    def reduce_apply(
        self,
        send: Buffer,
        receive: Buffer,
        op: str,
        apply: Apply | None,
        root: int | None = None,
        *,
        divided: bool = False,
    ) -> Work:
        make = self._known.find(send, receive, op, root, divided=divided)
        if make is not None:
            return self._flight.launch(make(send, receive, apply))
        check_root(root, self.size)
        check_pair(send, receive, np.size(send))
        check_op(op, send.dtype)
        node = self._node
        if node is None:
            return self._by_messages(Request(send, receive, op, apply, root, divided=False))
        together = divided or (root is None and node.is_common(receive))
        request = Request(send, receive, op, apply, root, together)
        if len(node.nodes) == 1:
            make = self._prepare(node, request)
            self._known.add(send, receive, op, root, make, divided=divided)
            return self._flight.launch(make(send, receive, apply))
        if send.nbytes <= SHORT_BYTES and not together:
            return self._by_messages(request)
        return self._lanes.launch(lambda lane: self._between(node, request, lane), request)

    def _prepare(self, node: Node, request: Request) -> Make:
        """What makes reductions such as this one, on one node."""
        send = request.send
        if send.nbytes <= INLINE_BYTES and not request.divided:
            kind = send.size, send.dtype, request.op, request.root
            if kind not in self._shorts:
                self._shorts[kind] = Short(node, *kind)
            return partial(ShortReduction, self._shorts[kind])
        plan, kernels = Plan(node, request), self.kernels

        def make(send: Buffer, receive: Buffer, apply: Apply | None) -> HostWork:
            reduction = Reduction(node, kernels, plan, send, receive, apply)
            return StepWork(reduction.steps(), plan.call)

        return make

    def _between(self, node: Node, request: Request, lane: Lane) -> Steps:
        """A reduction that goes over several nodes."""
        between, plan = Between(node, lane, request.root), Plan(node, request)
        send, receive, apply = request.send, request.receive, request.apply
        return Reduction(node, self.kernels, plan, send, receive, apply, between).steps()

    def _by_messages(self, request: Request) -> Work:
        """Launch a reduction that goes from rank to rank."""
        send, receive, op, apply, root, _ = request
        return self._lanes.launch(
            lambda lane: schedule.reduce(lane, send, receive, op, apply, root), request
        )

    def broadcast(self, buffer: Buffer, root: int = 0) -> Work:
        check_root(root, self.size)
        check_host(buffer, to_write=self.rank != root)
        check_buffer(buffer)
        node, what = self._node, f"a broadcast of {buffer.nbytes} bytes from rank {root}"
        if node is not None and len(node.nodes) == 1:
            return self._flight.launch(StepWork(Broadcast(node, buffer, root).steps(), what))
        return self._lanes.launch(lambda lane: schedule.broadcast(lane, buffer, root), what)

    def reduce_scatter(self, send: Buffer, receive: Buffer, op: str = "sum") -> Work:
        shift = self.rank * np.asarray(receive).nbytes
        check_pair(send, receive, np.size(send) // self.size, shift)
        check_buffers(receive, send, receive.size * self.size)
        check_op(op, send.dtype)
        return self._lanes.launch(
            lambda lane: schedule.reduce_scatter(lane, send, receive, op),
            f"a reduce_scatter of {send.nbytes} bytes",
        )

    def allgather(self, send: Buffer, receive: Buffer) -> Work:
        shift = -self.rank * np.asarray(send).nbytes
        check_pair(send, receive, np.size(send) * self.size, shift)
        return self._lanes.launch(
            lambda lane: schedule.allgather(lane, send, receive),
            f"an allgather of {receive.nbytes} bytes",
        )

    def barrier(self) -> Work:
        return self._lanes.launch(schedule.barrier, "a barrier")

    def split(self, color: int | None, key: int = 0) -> Communicator | None:
        check_color(color, key)
        # Numbered from 0, with the ranks to leave out as a group of their own, which is closed.
        colors = sorted(
            {other for other in self.control.allgather(color, "split") if other is not None}
        )
        number = len(colors) if color is None else colors.index(color)
        transport = self._transport.split(number, key)
        if color is None:
            transport.close()
            return None
        return ExchangeCommunicator(transport, self.timeout, share=True)

    def duplicate(self, timeout: float | None = None) -> Communicator:
        limit = self.timeout if timeout is None else timeout
        self.control.barrier("duplicate", limit)
        transport = self._transport.split(0, self.rank)
        return ExchangeCommunicator(transport, limit, share=True, among=self.control)

    def departed(self) -> dict[int, str]:
        return dict(self._transport.departed())

    def abort(self, reason: str) -> None:
        if not self._closed:
            self._closed = True
            self._flight.end(CommAborted(left(self.rank, self.size, reason)))
            self._transport.leave(reason)

    def close(self) -> None:
        if self._closed:
            return
        try:
            self.control.barrier("close")
        except RankLost as lost:
            # Whoever has left will not ask for anything any more, and close moves no data.
            self.abort(str(lost))
        else:
            self._closed = True
            self._flight.end(UsageError(closed(self.rank, self.size)))
            self._transport.close()
            if self._node is not None:
                self._node.close()
