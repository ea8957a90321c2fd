"""`Communicator`: the interface of all communicators, which know buffers and ranks, not keys.

A collective is *launched* by one call, which returns at once with a `Work`, and *waited for* by
another.  Buffers are one-dimensional, contiguous arrays of one dtype: NumPy's for communicators of
hosts, CuPy's for those of GPUs.  Between launch and the end of the wait they belong to the
communicator.

On a GPU nothing blocks the host: launch and wait are places in the order of a stream's work.  A
collective begins after all that is on the caller's current stream when it is launched, and whatever
the caller puts on its current stream after the wait finds it complete.

Every rank gets the same bits.  Hosts sum in rank order, 16-bit floats in float32, but long arrays
node by node, where there are several; NCCL sums in an order of its own.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np

from ncclkv.comm.control import CallDigest, ObjectComm
from ncclkv.comm.types import EVERYONE, Apply, Buffer, Root, To, Work
from ncclkv.errors import KVStoreError, NotSupported
from ncclkv.kernels.base import Kernels

if TYPE_CHECKING:
    from ncclkv.comm.diagnosis.mismatch import CallComparison


class Graph(ABC):
    """A captured step: what a `Communicator.capture` recorded, launched any number of times.

    Attributes
    ----------
    calls : list of str
        Descriptions of its collectives; all ranks must have the same.
    """

    calls: list[str]

    @abstractmethod
    def keep_alive(self, *objects: object) -> None:
        """Refer to `objects`, such as arrays that the kernels read and write, until its end."""

    @abstractmethod
    def launch(self) -> Work:
        """Launch all captured work, in the order of capture; collective."""


class Collective:
    """A prepared collective: checked once, launched any number of times.

    Parameters
    ----------
    start : callable
        ``start(apply)``: launch it.

    Attributes
    ----------
    label : str
        The `Work.label` of its launches.
    """

    __slots__ = ("_start", "label")

    def __init__(self, start: Callable[[Apply | None], Work]) -> None:
        self._start = start
        self.label = ""

    def launch(self, apply: Apply | None = None) -> Work:
        """Start the collective; collective over all ranks, in the same order.

        Parameters
        ----------
        apply : callable, optional
            ``apply(lo, hi)``, called whenever this rank launches or waits for a collective, over
            ranges that together are all elements once, in any order.
        """
        work = self._start(apply)
        work.label = self.label
        return work


class Communicator(ABC):
    """Ranks that reduce and move buffers together.

    Every method that launches a collective is itself collective: all ranks call it, in the same
    order, with buffers of the same length and dtype.

    Attributes
    ----------
    rank, size, local_rank, local_size : int
        This rank, and how many there are; the same among the ranks of this node.
    timeout : float
        Seconds that a wait may take.
    control : Control
        The way of host objects between the same ranks.
    kernels : Kernels
        The arithmetic of the memory that buffers are in.
    name : str
        The transport in a word or two, for messages and ``repr``.
    blocks : bool
        Whether it is the host that waits for collectives, as `Work.blocks`.
    digest : Mark
    calls : Calls or None
        What ranks have been called for, at several ranks.
    reproducible : bool
        True when all sums are made in rank order.  All ranks set it alike, while nothing is in
        flight and before they prepare a `Collective`.
    lock : RLock
        Held while a thread advances its collectives, where another thread may look at them.
    thread_multiple : bool
        Whether several threads may communicate at once, as ``MPI_THREAD_MULTIPLE``.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    timeout: float
    control: ObjectComm
    kernels: Kernels
    name: str
    blocks: bool = True
    digest: CallDigest
    calls: CallComparison | None = None
    reproducible: bool = False
    lock: threading.RLock
    thread_multiple: bool = True

    @abstractmethod
    def allocate(self, nbytes: int) -> Buffer:
        """Zeroed uint8 memory, aligned to `ALIGNMENT` bytes, that collectives can use best."""

    def node_shared(self, nbytes: int) -> Buffer | None:
        """Return zeroed uint8 memory that all ranks of this node share; None without shared memory.

        The ranks of a node get the same memory by the same calls in the same order.  Only a
        collective that all have launched may write the memory, or all ranks with the same bytes.
        Where shared memory exists, a request for 0 bytes succeeds too.
        """
        return None

    def rolling_back_node_shared(self) -> AbstractContextManager[None]:
        """Give back what a ``with`` block takes by `node_shared`, if the block raises.

        A second attempt then gets the memory that the other ranks of the node have.
        """
        return nullcontext()

    @abstractmethod
    def reduction(
        self,
        send: Buffer,
        receive: Buffer,
        op: str = "sum",
        *,
        to: To = EVERYONE,
        sharded_update: bool = False,
    ) -> Collective:
        """Prepare a reduction over all ranks; local.

        Parameters
        ----------
        send, receive : ndarray, shape (n,)
            May be the same array.  A `receive` in `node_shared` memory is written once a node.
            At ranks that do not receive, `receive` is scratch memory, or `send`.
        op : str
            One of `OPS`.
        to : To
            The ranks that receive and update.
        sharded_update : bool
            Divide the update between the ranks of a node that shares memory: each calls `apply` on
            ranges of its own, and its `receive` holds the sum of these alone, unless `receive` is
            itself `node_shared` memory.

        Returns
        -------
        Collective
            To be launched any number of times while the arrays stay as they are.

        Raises
        ------
        UsageError, NotSupported
            When the arguments do not fit together.
        """

    def allreduce(self, send: Buffer, receive: Buffer, op: str = "sum") -> Work:
        """Reduce over all ranks into `receive` on each; as `reduction`."""
        return self.reduction(send, receive, op).launch()

    def reduce(self, send: Buffer, receive: Buffer, op: str = "sum", root: int = 0) -> Work:
        """Reduce over all ranks into the root's `receive`; as `reduction`."""
        return self.reduction(send, receive, op, to=Root(root)).launch()

    @abstractmethod
    def broadcast(self, buffer: Buffer, root: int = 0) -> Work:
        """Copy the root's `buffer` into every rank's."""

    @abstractmethod
    def reduce_scatter(self, send: Buffer, receive: Buffer, op: str = "sum") -> Work:
        """Reduce over all ranks; rank r receives the r-th of `size` equal parts."""

    @abstractmethod
    def allgather(self, send: Buffer, receive: Buffer) -> Work:
        """Put every rank's `send` into `receive`, in rank order."""

    @abstractmethod
    def barrier(self) -> Work:
        """Complete once every rank has launched it."""

    @abstractmethod
    def split(self, color: int | None, key: int = 0) -> Communicator | None:
        """A communicator of the ranks that give the same `color`, ordered by `key`, then rank.

        A rank whose `color` is None gets None.
        """

    @abstractmethod
    def duplicate(self, timeout: float | None = None) -> Communicator:
        """A communicator of the same ranks whose traffic never meets this one's.

        The new communicator has a `timeout` in seconds of its own, by default this one's, and is
        `reproducible` as this one.
        """

    def left_ranks(self) -> dict[int, str]:
        """Ranks that are known to have left, with the reason they gave; does not block."""
        return {}

    def synchronize(self, timeout: float | None = None) -> None:
        """Block until this rank's host may read what its waits have been for.

        In host memory it may at once.  On a GPU this is where the host waits, for all that was
        launched and for the work of the current stream.

        Parameters
        ----------
        timeout : float, optional
            Seconds; by default the communicator's own.

        Raises
        ------
        CommTimeout, RankLost, CommAborted
            As `Work.wait` of a host, or when the device reports an error.
        """
        return None

    @abstractmethod
    def check(self, op: str, dtype: np.dtype[Any], what: str = "") -> None:
        """Refuse a reduction that cannot be done here; `what` begins the message.

        Raises
        ------
        UsageError
            When there is no such `op`.
        NotSupported
            When it has no meaning for `dtype`, or the library beneath has none of it.
        """

    def sync_stream(self) -> None:
        """Let the current stream go on after what earlier calls queued, on whatever stream.

        On hosts there are no streams.
        """
        return None

    def reported(self, error: BaseException, call: str) -> KVStoreError | None:
        """Return the error to raise for one of CUDA's that left a store's `call`; else None.

        On hosts there is no CUDA.
        """
        return None

    def keep_alive(self, *objects: Any) -> None:
        """Refer to `objects` until all that the current stream has been given is done.

        On hosts nothing is under way when a call returns.
        """
        return None

    def on_comm_stream(self) -> AbstractContextManager[None]:
        """Make the communicator's stream the current one; afterwards the old one waits for it.

        On hosts there are no streams.
        """
        return nullcontext()

    def capture(self) -> AbstractContextManager[Graph]:
        """Record what is launched in a ``with`` block as a graph, and do none of it; collective.

        Only launches, waits for them and kernels may be in the block, in the order of its current
        stream.  Before it, wait with `synchronize`.

        Raises
        ------
        NotSupported
            When this communicator cannot.
        """
        raise NotSupported(
            f"{self.name} has no graphs: only stores in a GPU's memory, such as create('nccl'), "
            f"can capture a step; make its calls each time instead"
        )

    @abstractmethod
    def abort(self, reason: str) -> None:
        """Leave at once, without waiting: peers that wait for this rank raise `RankLost`."""

    @abstractmethod
    def close(self) -> None:
        """Wait for all ranks, then free the communicator; a second call does nothing."""


def left(rank: int, size: int, reason: str) -> str:
    """Return the message of a call after `Communicator.abort`."""
    return (
        f"rank {rank} of {size}: this rank has left the communicator, and said: {reason}; make a "
        f"new one"
    )


def closed(rank: int, size: int) -> str:
    """Return the message of a call after `Communicator.close`."""
    return f"rank {rank} of {size}: the communicator is closed; make a new one"
