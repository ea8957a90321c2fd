"""Reductions of hosts, each prepared once for its arrays and started many times."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from ncclkv.comm.buffers import check_op, check_pair, check_root
from ncclkv.comm.messages import algorithms
from ncclkv.comm.messages.channel import Channel
from ncclkv.comm.messages.progress import ProgressEngine, Steps, StepWork
from ncclkv.comm.messages.tags import TagPool
from ncclkv.comm.messages.two_step import SHORT_BYTES
from ncclkv.comm.shm import header
from ncclkv.comm.shm.allreduce import AllReduce, ReductionPlan
from ncclkv.comm.shm.hierarchical import CrossNode
from ncclkv.comm.shm.node import Node
from ncclkv.comm.shm.small_allreduce import SmallAllReduce, SmallAllReduceWork
from ncclkv.comm.shm.staging import INLINE_BYTES
from ncclkv.comm.types import Apply, Buffer, Work

_MAX_PAIRS = 4096
_MAX_SMALL = 1024

Start = Callable[[Buffer, Buffer, "Apply | None"], Work]
"""``start(send, receive, apply)``: launch the reduction that was prepared for these arrays."""


class Reductions:
    """Prepares reductions, and caches what it prepared for two arrays without keeping them alive.

    Parameters
    ----------
    size : int
        The number of ranks.
    node : Node or None
        The shared memory of this rank's node.
    progress : ProgressEngine
    tags : TagPool
        The tags of collectives that exchange messages.
    """

    def __init__(
        self,
        size: int,
        node: Node | None,
        progress: ProgressEngine,
        tags: TagPool,
    ) -> None:
        self._size = size
        self._node = node
        self._progress = progress
        self._tags = tags
        self._reproducible = False
        # Nothing cached refers to this object: a cycle would keep shared memory until a collection.
        self._pairs: dict[tuple[int, int], _Pair] = {}
        self._small: dict[tuple[int, np.dtype[Any], str, int | None], SmallAllReduce] = {}

    @property
    def reproducible(self) -> bool:
        """True when later preparations make sums over several nodes in rank order."""
        return self._reproducible

    @reproducible.setter
    def reproducible(self, wanted: bool) -> None:
        self._reproducible = wanted
        self._pairs.clear()

    def start(
        self, send: Buffer, receive: Buffer, op: str, root: int | None, *, sharded_update: bool
    ) -> Start:
        """Return the function that starts this reduction; check the arguments the first time.

        Raises
        ------
        UsageError, NotSupported
            When the arguments do not fit together.
        """
        pair = self._pairs.get((id(send), id(receive)))
        if pair is not None and pair.matches(send, receive, op, root, sharded_update):
            return pair.start
        check_root(root, self._size)
        check_pair(send, receive, np.size(send))
        check_op(op, send.dtype)
        start = self._prepare(send, receive, op, root, sharded_update=sharded_update)
        if len(self._pairs) >= _MAX_PAIRS:
            self._pairs.clear()
        self._pairs[id(send), id(receive)] = _Pair(send, receive, op, root, sharded_update, start)
        return start

    def _prepare(
        self, send: Buffer, receive: Buffer, op: str, root: int | None, *, sharded_update: bool
    ) -> Start:
        """Choose the algorithm: in the memory of the node, between nodes, or by messages."""
        node = self._node
        if node is None:
            return self._by_messages(send, op, root)
        shared = sharded_update or (root is None and node.is_node_shared(receive))
        if len(node.nodes) > 1 and send.nbytes <= SHORT_BYTES and not shared:
            return self._by_messages(send, op, root)
        if len(node.nodes) == 1 and send.nbytes <= INLINE_BYTES and not shared:
            return self._of_copies(node, send, op, root)
        plan = ReductionPlan(node, send, receive, op, root, sharded_update=shared)
        return self._on_node(node, plan) if len(node.nodes) == 1 else self._on_nodes(node, plan)

    def _of_copies(self, node: Node, send: Buffer, op: str, root: int | None) -> Start:
        """Prepare a short reduction; all of one kind have the same copies."""
        kind = send.size, send.dtype, op, root
        if kind not in self._small:
            if len(self._small) >= _MAX_SMALL:
                self._small.clear()
            self._small[kind] = SmallAllReduce(node, *kind)
        small, launch = self._small[kind], self._progress.launch
        return lambda send, receive, apply: launch(SmallAllReduceWork(small, send, receive, apply))

    def _on_node(self, node: Node, plan: ReductionPlan) -> Start:
        """Prepare a reduction in the memory of this node."""
        launch = self._progress.launch

        def start(send: Buffer, receive: Buffer, apply: Apply | None) -> Work:
            reduction = AllReduce(node, plan, send, receive, apply)
            return launch(StepWork(reduction.steps(), plan.call, reduction.slot.arrivals))

        return start

    def _on_nodes(self, node: Node, plan: ReductionPlan) -> Start:
        """Prepare a reduction in the memory of every node and by messages between nodes."""
        launch, ordered = self._tags.launch, self._reproducible

        def start(send: Buffer, receive: Buffer, apply: Apply | None) -> Work:
            reduction = AllReduce(node, plan, send, receive, apply)

            def steps(channel: Channel) -> Steps:
                cross = CrossNode(node, channel, plan.root, ordered=ordered)
                return reduction.steps_across(cross)

            return launch(steps, plan.call, arrivals=reduction.slot.arrivals)

        return start

    def _by_messages(self, send: Buffer, op: str, root: int | None) -> Start:
        """Prepare a reduction from rank to rank."""
        call = header.reduction(send.nbytes, send.dtype, op, root, sharded_update=False)
        launch = self._tags.launch

        def start(send: Buffer, receive: Buffer, apply: Apply | None) -> Work:
            return launch(
                lambda channel: algorithms.reduce(channel, send, receive, op, apply, root), call
            )

        return start


class _Pair:
    """Two arrays, and the reduction that was prepared for them."""

    def __init__(
        self,
        send: Buffer,
        receive: Buffer,
        op: str,
        root: int | None,
        sharded_update: bool,
        start: Start,
    ) -> None:
        self.start = start
        self._send, self._receive = weakref.ref(send), weakref.ref(receive)
        self._shape, self._dtype = send.shape, send.dtype
        self._op, self._root, self._sharded_update = op, root, sharded_update

    def matches(
        self, send: Buffer, receive: Buffer, op: str, root: int | None, sharded_update: bool
    ) -> bool:
        """Return whether a call is the cached one; False needlessly at times, True never wrongly.

        An array that is the same object may have got another shape, dtype or flag meanwhile.
        """
        return (
            self._send() is send
            and self._receive() is receive
            and self._op is op
            and self._root is root
            and self._sharded_update is sharded_update
            and send.dtype is self._dtype
            and receive.dtype is self._dtype
            and send.shape == self._shape
            and receive.shape == self._shape
            and receive.flags.writeable
        )
