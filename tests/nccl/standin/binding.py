"""Calls of NCCL's interface: recorded, checked, and carried out in host memory."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from ncclkv import concurrency
from ncclkv.comm.base import Communicator
from ncclkv.comm.nccl.binding import connect
from ncclkv.comm.types import Work
from ncclkv.errors import CommError
from tests.nccl.standin.calls import TO_ONE, Call, Placed, check_group, place
from tests.nccl.standin.collective import Collective
from tests.nccl.standin.device import Device
from tests.nccl.standin.errors import Died, RefusedByStandIn
from tests.nccl.standin.exchange import Exchange
from tests.nccl.standin.faults import Faults
from tests.nccl.standin.handle import Handle
from tests.nccl.standin.hosts import twin
from tests.nccl.standin.log import HEADER
from tests.nccl.standin.order import HOST

_LOOK_SECONDS = 0.05
"""Seconds between two looks at the other ranks."""


class RecordingBinding:
    """A `ncclkv.comm.nccl.binding.Binding` for tests.

    Parameters
    ----------
    device : Device
        Device of the streams and the memory in the calls.
    faults : Faults
        Faults to raise.

    Attributes
    ----------
    timeouts : list of float
        The timeouts of the communicators that were made from others.
    """

    name = HEADER
    uncaptured = ""

    def __init__(self, device: Device, faults: Faults) -> None:
        self._device = device
        self._faults = faults
        self._offered: list[tuple[Communicator, float | None]] = []
        self._used: set[bytes] = set()
        self._depth = 0
        self._group: list[tuple[Handle, Placed]] = []
        self._handles: list[Handle] = []
        self._polls = 0
        self.timeouts: list[float] = []

    def offer(self, host: Communicator) -> None:
        """Keep a host communicator for the next communicator created of its ranks."""
        self._offered.append((host, None))

    def offer_later(self, host: Communicator, limit: float) -> None:
        """Offer a duplicate of a host communicator, which is made when it is taken.

        A duplicate takes a millisecond of each rank, and most tests take another communicator.
        """
        self._offered.append((host, limit))

    @contextmanager
    def lend(self) -> Iterator[None]:
        """Let other threads use the device and its communicators in a block, one at a time."""
        handles = [handle for handle in self._handles if not (handle.ended or handle.lent)]
        with ExitStack() as stack:
            stack.enter_context(self._device.lend())
            for handle in handles:
                if self._device.moved_by_callers:
                    stack.enter_context(handle.host.lend())
                handle.lent = True
            try:
                yield
            finally:
                for handle in handles:
                    handle.lent = False

    def version(self) -> int:
        return 22907

    def unique_id(self) -> bytes:
        return f"{HEADER}: {uuid.uuid4()}".encode().ljust(128, b"\0")

    def create(
        self,
        size: int,
        unique_id: bytes,
        rank: int,
        look: Callable[[], None] = lambda: None,
    ) -> Handle:
        look()
        self._device.check()
        if self._depth:
            raise RefusedByStandIn(f"create of rank {rank} inside a group")
        if len(unique_id) != 128:
            raise RefusedByStandIn(f"a unique id has 128 bytes, and this one {len(unique_id)}")
        if unique_id in self._used:
            raise RefusedByStandIn(f"create of rank {rank} with a unique id that was used before")
        self._used.add(unique_id)
        host = self._take(size, rank)
        ids = host.control.allgather(unique_id, "create")
        for other, theirs in enumerate(ids):
            if theirs != unique_id:
                raise RefusedByStandIn(f"rank {rank} and rank {other} create with different ids")
        name = f"communicator {len(self._handles)}"
        handle = Handle(name, host, self._faults.absent_from, self._faults.hangs)
        self._handles.append(handle)
        self._device.log.add(f"create {handle.name}, rank {rank} of {size}")
        return handle

    def _take(self, size: int, rank: int) -> Communicator:
        """Return the newest host communicator of this size in which this process has this rank."""
        for offer in reversed(self._offered):
            host, limit = offer
            if (host.size, host.rank) == (size, rank):
                self._offered.remove(offer)
                return host if limit is None else twin(host, limit)
        raise RefusedByStandIn(f"create as rank {rank} of {size}: there is no such group of ranks")

    def another(self, timeout: float) -> RecordingBinding:
        self.timeouts.append(timeout)
        return self

    def connect(
        self,
        comm: Handle,
        peers: Sequence[int],
        scratch: tuple[int, int],
        stream: int,
        look: Callable[[], None] | None = None,
    ) -> None:
        if look is not None:
            look()
        self._device.log.add(f"connect {comm.name} with {[*peers]}")
        connect(self, comm, peers, scratch, stream)

    def destroy(self, comm: Handle, look: Callable[[], None] | None = None) -> None:
        if look is not None:
            look()
        comm.check("destroy")
        self._device.log.add(f"destroy {comm.name}")
        comm.check_graphs("destroy")
        if comm.completed < comm.launched:
            raise RefusedByStandIn(f"destroy of {comm.name} on rank {comm.rank}, which is not idle")
        comm.ended = "destroyed"
        if look is None or not comm.hangs:
            self._meet_at_once(comm)
        else:
            self._meet(comm, look)
        comm.host.close()

    def _meet_at_once(self, comm: Handle) -> None:
        """Wait for the other ranks, and refuse the call if one is lost."""
        try:
            comm.host.control.barrier("destroy")
        except CommError as error:
            raise RefusedByStandIn(f"destroy of {comm.name} without every rank: {error}") from error

    def _meet(self, comm: Handle, look: Callable[[], None]) -> None:
        """Wait for the other ranks until `look` raises: NCCL itself reports no lost rank."""
        work = comm.host.barrier()
        try:
            while not _is_done(work):
                look()
                concurrency.sleep(_LOOK_SECONDS)
        except BaseException:
            comm.ended = "aborted"
            comm.host.abort("aborted")
            raise

    def abort(self, comm: Handle) -> None:
        if comm.ended:
            raise RefusedByStandIn(
                f"abort of {comm.name} on rank {comm.rank}, which was {comm.ended}"
            )
        self._device.log.add(f"abort {comm.name}")
        comm.check_graphs("abort")
        comm.ended = "aborted"
        comm.host.abort("aborted")
        self._device.finish(comm)
        # NCCL returns when the device has released all buffers.
        for stream in comm.streams:
            self._device.order.join(HOST, self._device.order.clock(stream))

    def async_error(self, comm: Handle) -> str | None:
        comm.check_open("async_error")  # any thread may ask
        self._polls += 1
        return self._faults.async_error(self._polls)

    def group_start(self) -> None:
        self._device.log.add("group_start")
        self._depth += 1

    def group_end(self) -> None:
        if not self._depth:
            raise RefusedByStandIn("group_end without a group_start")
        self._device.log.add("group_end")
        self._depth -= 1
        if not self._depth:
            group, self._group = self._group, []
            messages: dict[Handle, list[Placed]] = {}
            if not group:
                messages.update((handle, []) for handle in self._on_stream(self._device.current))
            for handle, placed in group:
                if placed.call.kind in TO_ONE:
                    messages.setdefault(handle, []).append(placed)
                elif handle.size > 1:
                    self._launch(handle, placed)
            for handle, all_placed in messages.items():
                self._exchange(handle, all_placed)

    def _on_stream(self, stream: int) -> list[Handle]:
        """Return the communicator on whose stream a group without calls has ended."""
        found = [each for each in self._handles if stream in each.streams and not each.ended]
        assert len(found) < 2, "the stand-in cannot find the communicator of an empty group"
        return [handle for handle in found if handle.size > 1]

    def all_reduce(
        self, comm: Handle, send: int, receive: int, count: int, dtype: int, op: int, stream: int
    ) -> None:
        self._add(comm, Call("all_reduce", send, receive, count, dtype, op, None, stream))

    def reduce(
        self,
        comm: Handle,
        send: int,
        receive: int,
        count: int,
        dtype: int,
        op: int,
        root: int,
        stream: int,
    ) -> None:
        self._add(comm, Call("reduce", send, receive, count, dtype, op, root, stream))

    def broadcast(
        self, comm: Handle, send: int, receive: int, count: int, dtype: int, root: int, stream: int
    ) -> None:
        self._add(comm, Call("broadcast", send, receive, count, dtype, None, root, stream))

    def reduce_scatter(
        self, comm: Handle, send: int, receive: int, count: int, dtype: int, op: int, stream: int
    ) -> None:
        self._add(comm, Call("reduce_scatter", send, receive, count, dtype, op, None, stream))

    def all_gather(
        self, comm: Handle, send: int, receive: int, count: int, dtype: int, stream: int
    ) -> None:
        self._add(comm, Call("all_gather", send, receive, count, dtype, None, None, stream))

    def send(self, comm: Handle, send: int, count: int, dtype: int, peer: int, stream: int) -> None:
        self._add(comm, Call("send", send, send, count, dtype, None, peer, stream))

    def receive(
        self, comm: Handle, receive: int, count: int, dtype: int, peer: int, stream: int
    ) -> None:
        self._add(comm, Call("receive", receive, receive, count, dtype, None, peer, stream))

    def _add(self, comm: Handle, call: Call) -> None:
        """Check a call; launch it at once if it is outside a group and has no peers."""
        self._device.check()
        comm.check(call.kind)
        placed = place(call, self._device.memory, comm.rank, comm.size)
        self._device.log.add(placed.line(self._device.name(call.stream)))
        if call.kind in TO_ONE and (not self._depth or call.root == comm.rank):
            raise RefusedByStandIn(
                f"{call} on rank {comm.rank}: a message goes to another rank, in a group with what "
                f"comes back, or both ends wait for ever"
            )
        if self._depth:
            check_group([each for _, each in self._group], placed)
            self._group.append((comm, placed))
        if not self._depth or comm.size == 1:
            self._launch(comm, placed)

    def _launch(self, comm: Handle, placed: Placed) -> None:
        """Queue a collective on its stream."""
        if self._faults.dies_in == comm.launched:
            raise Died(f"rank {comm.rank} dies in call {comm.launched}: {placed.call}")
        comm.streams.add(placed.call.stream)
        self._device.put(
            placed.call.stream,
            f"{placed.call.kind} of {comm.name}",
            lambda: Collective(comm, placed),
            placed.spans,
            comm,
        )

    def _exchange(self, comm: Handle, messages: list[Placed]) -> None:
        """Queue all messages of a group."""
        if self._faults.dies_in == comm.launched:
            raise Died(f"rank {comm.rank} dies in call {comm.launched}: messages")
        stream = messages[0].call.stream if messages else self._device.current
        comm.streams.add(stream)
        self._device.put(
            stream,
            f"messages of {comm.name}",
            lambda: Exchange(comm, messages),
            [span for placed in messages for span in placed.spans],
            comm,
        )


def _is_done(work: Work) -> bool:
    """Return whether a wait for all ranks is over; never true once a rank is lost."""
    try:
        return work.done()
    except CommError:
        return False
