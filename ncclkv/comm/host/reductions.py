"""Reductions of hosts, each prepared once for its arrays and started many times."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial
from operator import is_
from typing import Any

import numpy as np

from ncclkv.comm.base import Collective
from ncclkv.comm.destinations import To
from ncclkv.comm.messages import algorithms
from ncclkv.comm.messages.channel import SHORT_BYTES, limits
from ncclkv.comm.messages.progress import ProgressEngine, StepWork
from ncclkv.comm.messages.tags import TagPool
from ncclkv.comm.shm import header, hierarchical
from ncclkv.comm.shm.allreduce import AllReduce, ReductionPlan
from ncclkv.comm.shm.hierarchical import CrossNode
from ncclkv.comm.shm.node import Node
from ncclkv.comm.shm.small_allreduce import SmallAllReduce, SmallAllReduceWork
from ncclkv.comm.shm.staging import INLINE_BYTES
from ncclkv.comm.two_step import wire_bytes
from ncclkv.comm.types import Apply, Buffer, Work
from ncclkv.comm.wire import Limits

_MAX_PREPARED = 4096
_MAX_SMALL = 1024

_COPIES = Limits(INLINE_BYTES, INLINE_BYTES)

Start = Callable[[Buffer, Buffer, "Apply | None"], Work]
"""``start(send, receive, apply)``: launch the reduction that was prepared for these arrays."""

Sent = Callable[[], int]
"""Function that returns `Collective.wire_bytes`."""

_Options = tuple[str, "int | None", bool, bool]
"""Op, root, `sharded_update` of a reduction, and whether it keeps the rank order over nodes."""


class Reductions:
    """Prepares reductions, and caches what it prepared for two arrays without keeping them alive.

    Parameters
    ----------
    rank, size : int
    node : Node or None
        The shared memory of this rank's node.
    progress : ProgressEngine
    tags : TagPool
        The tags of collectives that exchange messages.
    """

    def __init__(
        self, rank: int, size: int, node: Node | None, progress: ProgressEngine, tags: TagPool
    ) -> None:
        self._rank, self._size = rank, size
        self._node = node
        self._progress = progress
        self._tags = tags
        # Nothing cached refers to this object: a cycle would keep shared memory until a collection.
        self._prepared: dict[tuple[int, int], _Prepared] = {}
        self._small: dict[tuple[int, np.dtype[Any], str, int | None], SmallAllReduce] = {}

    def find(
        self, send: Buffer, receive: Buffer, op: str, to: To, *, sharded: bool, ordered: bool
    ) -> Collective | None:
        """Return the reduction that was prepared for these arguments; None if there is none."""
        cached = self._prepared.get((id(send), id(receive)))
        if cached is None or not cached.matches(send, receive, (op, to.root, sharded, ordered)):
            return None
        return Collective(partial(cached.start, send, receive), cached.sent)

    def prepare(
        self, send: Buffer, receive: Buffer, op: str, to: To, *, sharded: bool, ordered: bool
    ) -> Collective:
        """Prepare a reduction to every rank or to a root, whose arguments are checked.

        Parameters
        ----------
        send, receive, op, to
            As for `Communicator.reduction`.
        sharded : bool
            Whether the ranks of a node update together.
        ordered : bool
            Whether sums over several nodes are made in rank order.
        """
        start, sent = self._prepare(send, receive, op, to, sharded=sharded, ordered=ordered)
        if len(self._prepared) >= _MAX_PREPARED:
            self._prepared.clear()
        options = op, to.root, sharded, ordered
        self._prepared[id(send), id(receive)] = _Prepared(send, receive, options, start, sent)
        return Collective(partial(start, send, receive), sent)

    def _prepare(
        self, send: Buffer, receive: Buffer, op: str, to: To, *, sharded: bool, ordered: bool
    ) -> tuple[Start, Sent]:
        """Choose the algorithm: in the memory of the node, between nodes, or by messages."""
        node, root = self._node, to.root
        sent = partial(wire_bytes, send.size, send.itemsize, to, self._rank, self._size)
        if node is not None:
            sharded = sharded or (root is None and node.is_node_shared(receive))
        if node is None or (len(node.nodes) > 1 and send.nbytes <= SHORT_BYTES and not sharded):
            return self._by_messages(send, op, to), partial(sent, limits(self._size))
        if len(node.nodes) == 1 and send.nbytes <= INLINE_BYTES and not sharded:
            return self._of_copies(node, send, op, root), partial(sent, _COPIES)
        plan = ReductionPlan(node, send, receive, op, root, sharded_update=sharded)
        in_memory = partial(hierarchical.wire_bytes, node, send.size, send.dtype, op, to)
        sent = partial(in_memory, sharded=sharded, ordered=ordered)
        return self._by_slices(node, plan, to, ordered), sent

    def _of_copies(self, node: Node, send: Buffer, op: str, root: int | None) -> Start:
        """Prepare a small reduction; all of one kind have the same copies."""
        kind = send.size, send.dtype, op, root
        if kind not in self._small:
            if len(self._small) >= _MAX_SMALL:
                self._small.clear()
            self._small[kind] = SmallAllReduce(node, *kind)
        small, launch = self._small[kind], self._progress.launch
        return lambda send, receive, apply: launch(SmallAllReduceWork(small, send, receive, apply))

    def _by_slices(self, node: Node, plan: ReductionPlan, to: To, ordered: bool) -> Start:
        """Prepare a reduction in the memory of each node, and by messages between nodes."""
        launch, tags = self._progress.launch, self._tags

        def start(send: Buffer, receive: Buffer, apply: Apply | None) -> Work:
            reduction = AllReduce(node, plan, send, receive, apply)
            arrivals = reduction.slot.arrivals
            if len(node.nodes) == 1:
                return launch(StepWork(reduction.steps(), plan.call, arrivals))
            return tags.launch(
                lambda channel: reduction.steps_across(
                    CrossNode(node, channel, to, ordered=ordered)
                ),
                plan.call,
                arrivals=arrivals,
            )

        return start

    def _by_messages(self, send: Buffer, op: str, to: To) -> Start:
        """Prepare a reduction from rank to rank."""
        call = header.reduction(send.nbytes, send.dtype, op, to.root, sharded_update=False)
        launch = self._tags.launch
        return lambda send, receive, apply: launch(
            lambda channel: algorithms.reduction(channel, send, receive, op, to, apply), call
        )


class _Prepared:
    """The start of a reduction, with the arrays and options that it was prepared for."""

    def __init__(
        self, send: Buffer, receive: Buffer, options: _Options, start: Start, sent: Sent
    ) -> None:
        self.start, self.sent = start, sent
        self._send, self._receive = weakref.ref(send), weakref.ref(receive)
        self._form = _form(send, receive)
        self._options = options

    def matches(self, send: Buffer, receive: Buffer, options: _Options) -> bool:
        """Return whether a call is the cached one; may be False needlessly, never True wrongly."""
        same_arrays = self._send() is send and self._receive() is receive
        # 1, 1.0 and True are equal, and the last two are no ranks.
        same_options = all(map(is_, self._options, options))
        return same_arrays and same_options and self._form == _form(send, receive)


def _form(send: Buffer, receive: Buffer) -> tuple[object, ...]:
    """Return what the checks depend on, and a program may change while an array exists."""
    return send.shape, send.dtype, receive.shape, receive.dtype, receive.flags.writeable
