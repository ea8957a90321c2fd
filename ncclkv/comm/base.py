"""`Communicator`: the interface of all communicators, which take buffers and ranks, never keys.

A collective is *launched* by one call, which returns at once with a `Work`, and *waited for* by
another.  Buffers are one-dimensional, contiguous arrays of one dtype: NumPy's for communicators of
hosts, CuPy's for those of GPUs.  Between launch and the end of the wait they belong to the
communicator.

On a GPU nothing blocks the host: launch and wait only order the work of streams.  A collective
begins after the work that is on the caller's current stream at the launch.  Work that the caller
puts on its current stream after the wait begins after the collective.

Every rank gets the same bits.  Hosts sum in rank order, 16-bit floats in float32.  Hosts of
several nodes sum long arrays node by node.  NCCL sums in an order of its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np

from ncclkv import concurrency
from ncclkv.comm import callbacks
from ncclkv.comm.buffers import (
    allocate,
    check_buffer,
    check_buffers,
    check_counts,
    check_exchange,
    check_host,
    check_op,
    check_pair,
    check_root,
)
from ncclkv.comm.control import CallDigest, ObjectComm
from ncclkv.comm.destinations import EVERYONE, Owners, Root, To
from ncclkv.comm.transport import Steps
from ncclkv.comm.two_step import all_to_all
from ncclkv.comm.types import Apply, Buffer, WaitObserver, Work
from ncclkv.comm.wire import Program, ProgramSteps, Wire
from ncclkv.errors import KVStoreError, NotSupported, UsageError
from ncclkv.kernels.base import Kernels
from ncclkv.tracebacks import public, trim

if TYPE_CHECKING:
    from ncclkv.comm.diagnosis.mismatch import CallComparison


_OWN = {"barrier", "split", "duplicate", "synchronize", "close", "observe_waits"}
"""Public methods that subclasses of `Communicator` define."""


class Graph(ABC):
    """A captured step: the work that `Communicator.capture` recorded, launched any number of times.

    Attributes
    ----------
    calls : list of str
        Descriptions of its collectives; all ranks must have the same.
    """

    calls: list[str]

    @abstractmethod
    def keep_alive(self, *objects: object) -> None:
        """Keep `objects`, such as arrays that the kernels use, alive as long as the graph."""

    @abstractmethod
    def launch(self) -> Work:
        """Launch all captured work, in the order of capture; collective."""


class Collective:
    """A prepared collective: checked once, launched any number of times.

    Parameters
    ----------
    start : callable
        ``start(apply)`` launches the collective.
    sent : callable, optional
        Returns `wire_bytes`.
    call : str
        Its name in the error of a launch that is refused.

    Attributes
    ----------
    label : str
        The `Work.label` of its launches.
    """

    __slots__ = ("_call", "_sent", "_start", "label")

    def __init__(
        self,
        start: Callable[[Apply | None], Work],
        sent: Callable[[], int] = int,
        call: str = "a reduction",
    ) -> None:
        self._start = start
        self._sent = sent
        self._call = call
        self.label = ""

    @property
    def wire_bytes(self) -> int:
        """Return the bytes that this rank sends in a launch, or that its neighbours read of it.

        For a sum of NCCL's own they are those of a two-step sum, the least possible.
        """
        return self._sent()

    def launch(self, apply: Apply | None = None) -> Work:
        """Start the collective; collective over all ranks, in the same order.

        Parameters
        ----------
        apply : callable, optional
            ``apply(lo, hi)``, called for each range whose result is complete.  The ranges contain
            each element once, in any order; a range to an owner is not empty.  `apply` may change
            its range of the result.  The calls are made while this rank launches or waits for any
            collective.
        """
        try:
            if callbacks.inside:
                callbacks.refuse(self._call)
            work = self._start(apply)
        except Exception as error:
            trim(error)
            raise
        work.label = self.label
        return work


class Communicator(ABC):
    """Ranks that reduce and move buffers together.

    Every method that launches a collective is itself collective: all ranks call it, in the same
    order, with buffers of the same length and dtype.

    Attributes
    ----------
    rank, size, local_rank, local_size : int
        Index of this rank and count of all ranks; the same two among the ranks of this node.
    first_node : bool
        Whether rank 0 is a rank of this node.
    timeout : float
        Seconds that a wait may take.
    control : ObjectComm
        Exchanges host objects between the same ranks.
    kernels : Kernels
        The arithmetic of the memory that buffers are in.
    name : str
        The transport in a word or two, for messages and ``repr``.
    blocks : bool
        True when a wait blocks the host, False when it blocks a stream; as `Work.blocks`.
    digest : CallDigest
    calls : CallComparison or None
        Compares the calls of several ranks.
    reproducible : bool
        True when all sums are made in rank order.  All ranks set it alike, while nothing is in
        flight and before they prepare a `Collective`.
    lock : RLock
        Held while a thread advances its collectives: a watcher thread may check them.
    thread_multiple : bool
        Whether several threads may communicate at once, as ``MPI_THREAD_MULTIPLE``.
    not_on_gpus : str
        The reason for host memory, in a store that uses GPUs where possible; else empty.
    nodes : sequence of sequence of int, or None
        The ranks of each node, whether or not they share memory; None if this is not known.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    first_node: bool = True
    timeout: float
    control: ObjectComm
    kernels: Kernels
    name: str
    blocks: bool = True
    digest: CallDigest
    calls: CallComparison | None = None
    reproducible: bool = False
    lock: concurrency.RLock
    thread_multiple: bool = True
    not_on_gpus: str = ""
    nodes: Sequence[Sequence[int]] | None = None

    def __init_subclass__(cls) -> None:
        """Make the methods `public` that each kind of communicator has of its own."""
        super().__init_subclass__()
        for name in _OWN & vars(cls).keys():
            setattr(cls, name, public(getattr(cls, name)))

    @public
    def observe_waits(self, observer: WaitObserver | None) -> None:
        """Report waits of the host for other ranks to `observer`, or to nobody; local.

        On a GPU the collectives that are launched meanwhile get `Work.device_times`.
        """
        return None

    def lend(self) -> AbstractContextManager[None]:
        """Let other threads launch and advance collectives in a ``with`` block.

        A thread holds `lock` meanwhile.  On hosts it may do so only if `thread_multiple` is set.
        """
        return nullcontext()

    def allocate(self, nbytes: int) -> Buffer:
        """Return zeroed uint8 memory, aligned to `ALIGNMENT`; collectives are fastest there."""
        return allocate(nbytes)

    def node_shared(self, nbytes: int) -> Buffer | None:
        """Return zeroed uint8 memory that all ranks of this node share; None without shared memory.

        The ranks of a node get the same memory by the same calls in the same order.  The memory is
        written only by a collective that all ranks have launched, or by all ranks with the same
        bytes.  If the node has shared memory, a request for 0 bytes succeeds too.
        """
        return None

    def rolling_back_node_shared(self) -> AbstractContextManager[None]:
        """Give back what a ``with`` block takes by `node_shared`, if the block raises.

        A second attempt then gets the memory that the other ranks of the node have.
        """
        return nullcontext()

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
            On ranks that do not receive, `receive` is scratch memory, or `send`.  A sum to `Owners`
            writes only this rank's own part of `receive`.
        op : str
            One of `OPS`.
        to : To
            The ranks that receive and update.  In a sum to `Owners`, `apply` gets ranges of this
            rank's own part.
        sharded_update : bool
            Divide the update between the ranks of a node that shares memory: each rank calls
            `apply` on ranges of its own.  Its `receive` then holds the sum of these ranges only,
            unless `receive` is itself `node_shared` memory.

        Returns
        -------
        Collective
            To be launched any number of times while the arrays stay as they are.

        Raises
        ------
        UsageError, NotSupported
            When the arguments do not fit together.
        """
        try:
            self._check_pair(send, receive, _length(send), 0)
            self.check(op, send.dtype)
            to.check(send.size, self.size)
            if to.divided:
                lo, hi = to.part(self.rank, send.size)
                return self._to_owners(send, receive[lo:hi], op, to)
            return self._reduction(send, receive, op, to, sharded_update=sharded_update)
        except Exception as error:
            trim(error)
            raise

    @abstractmethod
    def _reduction(
        self, send: Buffer, receive: Buffer, op: str, to: To, *, sharded_update: bool
    ) -> Collective:
        """Prepare a reduction to every rank or to a root, whose arguments are checked."""

    @abstractmethod
    def _to_owners(self, send: Buffer, own: Buffer, op: str, to: To) -> Collective:
        """Prepare a reduction to a divided destination; `own` receives this rank's part."""

    def _check_memory(self, buffer: Any, to_write: bool) -> None:
        """Refuse a buffer that is not in this communicator's kind of memory."""
        check_host(buffer, to_write)

    def _check_pair(self, send: Any, receive: Any, count: int, shift: int) -> None:
        """Refuse arrays that do not fit together; as `check_pair`."""
        check_pair(send, receive, count, shift, self._check_memory)

    def allreduce(self, send: Buffer, receive: Buffer, op: str = "sum") -> Work:
        """Launch a reduction over all ranks into `receive` on every rank; see `reduction`."""
        try:
            return self.reduction(send, receive, op).launch()
        except Exception as error:
            trim(error)
            raise

    @public
    def reduce(self, send: Buffer, receive: Buffer, op: str = "sum", root: int = 0) -> Work:
        """Launch a reduction over all ranks into the root's `receive`; see `reduction`."""
        return self.reduction(send, receive, op, to=Root(root)).launch()

    @public
    def broadcast(self, buffer: Buffer, root: int = 0) -> Work:
        """Launch a copy of the root's `buffer` into every rank's."""
        if callbacks.inside:
            callbacks.refuse("broadcast")
        check_root(root, self.size)
        self._check_memory(buffer, to_write=self.rank != root)
        check_buffer(buffer)
        return self._broadcast(buffer, root)

    @abstractmethod
    def _broadcast(self, buffer: Buffer, root: int) -> Work:
        """Launch `broadcast`, whose arguments are checked."""

    @public
    def reduce_scatter(self, send: Buffer, receive: Buffer, op: str = "sum") -> Work:
        """Launch a reduction over all ranks; rank r receives part r of `size` equal parts."""
        self._check_pair(send, receive, _length(send) // self.size, self.rank * _length(receive))
        check_buffers(receive, send, receive.size * self.size)
        self.check(op, send.dtype)
        bounds = range(0, send.size + 1, receive.size) if receive.size else [0] * (self.size + 1)
        return self._to_owners(send, receive, op, Owners(bounds)).launch()

    @public
    def allgather(self, send: Buffer, receive: Buffer) -> Work:
        """Put every rank's `send` into `receive`, in rank order."""
        if callbacks.inside:
            callbacks.refuse("allgather")
        self._check_pair(send, receive, _length(send) * self.size, -self.rank * _length(send))
        return self._gather(send, receive, [send.size] * self.size)

    @public
    def allgatherv(self, send: Buffer, receive: Buffer, counts: Sequence[int]) -> Work:
        """Put every rank's `send` into `receive`, in rank order.

        Parameters
        ----------
        send, receive : ndarray
            `send` may be this rank's part of `receive`.  A `receive` in `node_shared` memory is
            written once a node; then `send` is this rank's part of it, on all ranks.
        counts : sequence of int
            The elements that each rank sends, the same on all ranks.
        """
        if callbacks.inside:
            callbacks.refuse("allgatherv")
        check_counts(counts, self.size)
        before = sum(counts[: self.rank])
        self._check_pair(send, receive, sum(counts), -before)
        if send.size != counts[self.rank]:
            raise UsageError(
                f"send has {send.size} elements where counts has {counts[self.rank]} for rank "
                f"{self.rank}; make them the same"
            )
        return self._gather(send, receive, counts)

    @abstractmethod
    def _gather(self, send: Buffer, receive: Buffer, counts: Sequence[int]) -> Work:
        """Launch `allgatherv`, whose arguments are checked."""

    @public
    def all_to_all(self, send: Sequence[Buffer], receive: Sequence[Buffer]) -> Work:
        """Send a buffer to each rank, and receive one from each.

        Parameters
        ----------
        send, receive : sequence of ndarray
            One for each rank, of one dtype and any lengths; rank r's ``receive[s]`` is as long as
            rank s's ``send[r]``.  A buffer may be sent to several ranks.
        """
        if callbacks.inside:
            callbacks.refuse("all_to_all")
        check_exchange(send, receive, self.rank, self.size, self._check_memory)

        def steps(wire: Wire, apply: Apply | None) -> Steps:
            wire.copy(send[wire.rank], receive[wire.rank])
            return all_to_all(wire, send, receive)

        return self.program(steps, what="an all_to_all", kept=[*send, *receive]).launch()

    @public
    def program(
        self,
        steps: ProgramSteps,
        *,
        what: str,
        nbytes: int = 0,
        scratch: int = 0,
        sent: Callable[[], int] = int,
        kept: Sequence[object] = (),
    ) -> Collective:
        """Prepare a collective that is a program: a generator of exchanges over a `Wire`; local.

        The steps run up to their first exchange at the launch, and then while this rank launches or
        waits for any collective.  On a GPU all steps run at the launch, on the communication
        stream: they order kernels and messages, and never read the elements of an array.

        Parameters
        ----------
        steps : callable
            `ProgramSteps`.
        what : str
            The name, with an article.  All ranks have the same name.
        nbytes : int
            The size to compare between ranks; 0 if the ranks may differ.
        scratch : int
            The maximum of bytes that a read receives without a place, or that `Wire.scratch`
            returns.
        sent : callable, optional
            Returns `Collective.wire_bytes`.
        kept : sequence
            The arrays that the program uses, or objects that have them.  They stay alive until its
            work on a GPU is complete.

        Returns
        -------
        Collective
            To be launched any number of times.

        Examples
        --------
        >>> import numpy as np
        >>> from ncclkv.comm.solo import SoloCommunicator
        >>> own = np.arange(6)
        >>> def steps(wire, apply):
        ...     parts = yield from wire.read(own, lambda reader, owner: (2, 4))
        ...     apply(int(parts[0][0]), int(parts[0][1]))
        >>> SoloCommunicator(timeout=10).program(steps, what="a test").launch(print).wait()
        2 3
        """
        return self._program(Program(steps, what, nbytes, scratch, sent, kept))

    @abstractmethod
    def _program(self, program: Program) -> Collective:
        """Prepare `program`."""

    @abstractmethod
    def barrier(self) -> Work:
        """Complete once every rank has launched it."""

    @abstractmethod
    def split(self, color: int | None, key: int = 0) -> Communicator | None:
        """Make a communicator of the ranks with the same `color`, ordered by `key`, then rank.

        Collective.  A rank whose `color` is None gets None.
        """

    @abstractmethod
    def duplicate(self, timeout: float | None = None) -> Communicator:
        """Make a communicator of the same ranks, with messages of its own; collective.

        The new communicator has this communicator's `reproducible`, and its timeout unless
        `timeout` sets another, in seconds.
        """

    def left_ranks(self) -> dict[int, str]:
        """Return the ranks whose farewells have arrived, with their reasons; does not block."""
        return {}

    def synchronize(self, timeout: float | None = None) -> None:
        """Block the host until it may read the results of the collectives waited for before.

        On hosts the call returns at once.  On a GPU the host waits here, and only here, for all
        launched collectives and for the work of the current stream.

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

    @public
    def to_host(self, array: Buffer) -> Buffer:
        """Return a copy of an array in host memory, once the collectives are complete.

        A plain copy would wait for a GPU without a deadline, and hide NCCL's errors.
        """
        on_host = np.empty(array.shape, array.dtype)
        self.synchronize()
        self.kernels.unpack(array, on_host)
        return on_host

    def check(self, op: str, dtype: np.dtype[Any], what: str = "") -> None:
        """Refuse a reduction that cannot be done here; `what` begins the message.

        Raises
        ------
        UsageError
            When there is no such `op`.
        NotSupported
            When the op has no meaning for `dtype`, or NCCL does not have the op or the dtype.
        """
        check_op(op, dtype, what)

    def sync_stream(self) -> None:
        """Make the current stream wait for the stream that was current at the last call.

        On hosts there are no streams.
        """
        return None

    def use_device(self) -> Callable[[], None] | None:
        """Make the GPU of the buffers current in the calling thread.

        On hosts there is no GPU.

        Returns
        -------
        callable or None
            Makes the thread's own GPU current again.  None if there is nothing to do.
        """
        return None

    def reported(self, error: BaseException, call: str) -> KVStoreError | None:
        """Return the error to raise in place of a CUDA error in a store's `call`; else None.

        On hosts there is no CUDA.
        """
        return None

    def keep_alive(self, *objects: Any) -> None:
        """Refer to `objects` until the current stream has completed its present work.

        On hosts all work is complete when a call returns.
        """
        return None

    def on_comm_stream(self) -> AbstractContextManager[None]:
        """Make the communication stream current in a ``with`` block.

        After the block the previous stream is current again, and waits for the work of the block.
        On hosts there are no streams.
        """
        return nullcontext()

    @public
    def capture(self) -> AbstractContextManager[Graph]:
        """Record the launches of a ``with`` block as a graph, and execute none; collective.

        The block may only launch collectives, wait for them, and run kernels, all on the stream
        that the capture makes current.  Call `synchronize` before the block.

        Raises
        ------
        NotSupported
            When this communicator has no graphs.
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


def _length(array: Any) -> int:
    """Return the count of elements; 0 for an object that is no array, which a check refuses."""
    return getattr(array, "size", 0)


def left(rank: int, size: int, reason: str) -> str:
    """Return the message of a call after `Communicator.abort`."""
    return (
        f"rank {rank} of {size}: this rank has left the communicator; farewell: {reason}; make a "
        f"new one"
    )


def closed(rank: int, size: int) -> str:
    """Return the message of a call after `Communicator.close`."""
    return f"rank {rank} of {size}: the communicator is closed; make a new one"
