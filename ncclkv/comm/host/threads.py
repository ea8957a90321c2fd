"""Ranks that are threads of one process: for tests, and for trying any number of ranks."""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import count
from sys import _getframe
from typing import Any
from weakref import WeakSet

import numpy as np

from ncclkv import concurrency, env
from ncclkv.comm.base import Communicator, left
from ncclkv.comm.buffers import allocate
from ncclkv.comm.diagnosis.call_ring import call_site
from ncclkv.comm.diagnosis.farewells import RETURNED
from ncclkv.comm.diagnosis.reports import format_ranks
from ncclkv.comm.host.communicator import HostCommunicator
from ncclkv.comm.messages import progress
from ncclkv.comm.messages.progress import forget_thread, progress_engines
from ncclkv.comm.solo import SoloCommunicator
from ncclkv.comm.transport import Request, Transport, WrongLength
from ncclkv.comm.types import Buffer
from ncclkv.errors import CommAborted, CommTimeout, RankLost, UsageError
from ncclkv.system import log as logger
from ncclkv.system.memory_left import memory_left

# Up to here the sender copies its data, and does not wait for the receiver.
_EAGER_BYTES = 4096

# Longest sleep of a waiting thread before it checks its deadline again.
_PAUSE_SECONDS = 0.005

_Address = tuple[int, int, int]
"""Sender, receiver and tag of messages."""

_LeftRanks = Callable[[], dict[int, str]]
"""Function that returns what `Transport.left_ranks` does."""


class _Changes:
    """Changes that one rank may wait for.

    Attributes
    ----------
    count : int
    happened : concurrency.Condition
        Notified of each change.
    """

    def __init__(self, lock: concurrency.RLock) -> None:
        self.count = 0
        self.happened = concurrency.Condition(lock)

    def add(self) -> None:
        """Wake the rank's threads that wait; the caller holds the lock."""
        self.count += 1
        self.happened.notify_all()


@dataclass
class Outgoing(Request):
    """A message that its receiver copies out of the sender's memory, or out of a copy.

    Attributes
    ----------
    data : ndarray
    peer : int
    received : bool
    arrives : int
        The time at which the receiver can find it, in a seeded world.
    """

    data: Buffer
    peer: int
    received: bool = False
    arrives: int = 0

    def done(self) -> bool:
        return self.received


class ThreadGroup:
    """Mailboxes, notices and farewells of the ranks of one communicator.

    Attributes
    ----------
    lock : concurrency.RLock
        Held by each thread that writes the other attributes.
    messages : dict of deque
        Messages under way, by address, in the order of sending.
    inboxes : dict of list
        As `Transport.inbox`, by rank.
    departed : dict of int to str
        Ranks that have left, with their reasons.
    changes : dict of int to _Changes
        The changes for each rank; entries are made at their first use.
    """

    def __init__(self) -> None:
        self.lock = concurrency.RLock()
        self.messages: dict[_Address, deque[Outgoing]] = {}
        self.inboxes: defaultdict[int, list[tuple[int, bytes]]] = defaultdict(list)
        self.departed: dict[int, str] = {}
        self._exchanges: dict[int, dict[int, Any]] = {}
        self.changes: defaultdict[int, _Changes] = defaultdict(lambda: _Changes(self.lock))

    def announce(self) -> None:
        """Wake all ranks that wait; the caller holds the lock."""
        for changes in self.changes.values():
            changes.add()

    def allgather(
        self, index: int, rank: int, size: int, item: Any, left_ranks: _LeftRanks, timeout: float
    ) -> dict[int, Any]:
        """Wait for the item of each rank in the exchange of that index; return the items.

        Raises
        ------
        RankLost
            When one of `left_ranks` has given none.
        CommTimeout
            When a rank has given none after so many seconds.
        """
        who, what = f"rank {rank} of {size}", "an exchange of threads"
        with self.lock:
            items = self._exchanges.setdefault(index, {})
            items[rank] = item
            begin = concurrency.monotonic()
            while len(items) < size:
                for lost, reason in left_ranks().items():
                    if lost not in items:
                        raise RankLost(
                            f"{who}: rank {lost} left while {what} waited for it; farewell: "
                            f"{reason}",
                            ranks=[lost],
                        )
                waited = concurrency.monotonic() - begin
                if waited > timeout:
                    missing = set(range(size)) - items.keys()
                    raise CommTimeout(
                        f"{who}: {what} waited {waited:.1f} s (timeout {timeout:g} s) for "
                        f"{format_ranks(missing)}",
                        ranks=missing,
                    )
                self.changes[rank].happened.wait(_PAUSE_SECONDS)
            self.announce()
            self._exchanges.pop(index, None)
            return items


@dataclass
class Incoming(Request):
    """A message that its receiver copies out of a mailbox."""

    group: ThreadGroup
    address: _Address
    into: Buffer
    peer: int
    received: bool = False

    def done(self) -> bool:
        if not self.received:
            # Most polls find no message: they need no lock.
            if self.address not in self.group.messages:
                return False
            with self.group.lock:
                box = self.group.messages.get(self.address)
                if not box:
                    return False
                self._copy(box.popleft())
                if not box:
                    del self.group.messages[self.address]
                self.received = True
        return True

    def _copy(self, message: Outgoing) -> None:
        if message.data.size != self.into.size:
            sender, rank, _ = self.address
            raise WrongLength(rank, sender, message.data.size, self.into.size)
        np.copyto(self.into, message.data)
        if not message.received:
            message.received = True
            self.group.changes[self.peer].add()


class ThreadTransport(Transport):
    """One thread's end of a `ThreadGroup`.

    Parameters
    ----------
    group : ThreadGroup
    rank, size : int
    parent : ThreadTransport, optional
        The transport that this one was split from.
    parent_ranks : sequence of int
        The rank in `parent` of each rank.

    Attributes
    ----------
    first : ThreadTransport
        The transport of all ranks, which this one is, or was split from.
    group_type : type
    timeout : float
        Seconds that an exchange of all threads may take.
    """

    name = "threads"
    group_type: type[ThreadGroup] = ThreadGroup

    def __init__(
        self,
        group: ThreadGroup,
        rank: int,
        size: int,
        parent: ThreadTransport | None = None,
        parent_ranks: Sequence[int] = (),
    ) -> None:
        self.rank, self.size = rank, size
        self.node = env.split_node(range(size), rank)
        self._group = group
        self._parent, self._parent_ranks = parent, parent_ranks
        self.first: ThreadTransport = self if parent is None else parent.first
        self.timeout: float = math.inf if parent is None else parent.timeout
        self._exchanges = 0
        self._seen_changes = -1
        self.inbox = group.inboxes[rank]

    def send(self, data: Buffer, peer: int, tag: int) -> Outgoing:
        eager = data.nbytes <= _EAGER_BYTES
        message = Outgoing(data.copy() if eager else data, peer, received=eager)
        with self._group.lock:
            self._group.messages.setdefault((self.rank, peer, tag), deque()).append(message)
            self._group.changes[peer].add()
        return message

    def receive(self, into: Buffer, peer: int, tag: int) -> Request:
        return Incoming(self._group, (peer, self.rank, tag), into, peer)

    def pause(self, attempt: int) -> None:
        # A change since the last pause may be unread: sleep only when there was none.
        with self._group.lock:
            changes = self._group.changes[self.rank]
            if self._seen_changes == changes.count:
                changes.happened.wait(_PAUSE_SECONDS)
            self._seen_changes = changes.count

    def notify(self) -> None:
        with self._group.lock:
            self._group.announce()

    def windows_left(self) -> int:
        left = memory_left()
        if left is None:
            raise OSError("no file of this system shows how much memory is free")
        return left.nbytes

    def window(self, nbytes: int) -> list[Buffer]:
        parts = self._allgather(allocate(nbytes))
        return [parts[rank] for rank in self.node]

    def _allgather(self, item: Any) -> dict[int, Any]:
        """Wait for the item of each rank; return the items."""
        self._exchanges += 1
        index = self._exchanges
        return self._group.allgather(
            index, self.rank, self.size, item, self.left_ranks, self.timeout
        )

    def left_ranks(self) -> dict[int, str]:
        inherited = {} if self._parent is None else self._parent.left_ranks()
        left = {
            rank: inherited[old] for rank, old in enumerate(self._parent_ranks) if old in inherited
        }
        return {**left, **self._departed()}

    def _departed(self) -> dict[int, str]:
        """Return the ranks of this group that have left, and their reasons."""
        return self._group.departed

    def post(self, data: bytes, peers: Iterable[int]) -> None:
        with self._group.lock:
            for peer in peers:
                self._group.inboxes[peer].append((self.rank, data))
                self._group.changes[peer].add()

    def leave(self, reason: str) -> None:
        with self._group.lock:
            # The first reason stays: that of a failure, and not of the return after it.
            self._group.departed.setdefault(self.rank, reason)
            self._group.announce()

    def split(self, color: int, key: int) -> Transport:
        offers = self._allgather((color, key, self.group_type()))
        same_color = [rank for rank, (other, _, _) in offers.items() if other == color]
        ranks = sorted(same_color, key=lambda rank: (offers[rank][1], rank))
        group = offers[ranks[0]][2]
        return type(self)(group, ranks.index(self.rank), len(ranks), self, ranks)

    def close(self) -> None:
        return None


class _Current(concurrency.local):
    """The communicator of the rank that this thread is."""

    communicator: HostCommunicator | None = None


_current = _Current()

_rank_threads: WeakSet[concurrency.Thread] = WeakSet()
"""The threads that are ranks, and those that were and have ended."""

_indices = count(1)
"""Indices of the groups so far, for their names."""


def communicators(
    size: int, timeout: float, transport: type[ThreadTransport] = ThreadTransport
) -> Sequence[HostCommunicator]:
    """Return the communicator of each rank of a new group."""
    group = transport.group_type()
    ends = [transport(group, rank, size) for rank in range(size)]
    for end in ends:
        end.timeout = timeout
    made = [HostCommunicator(end, timeout) for end in ends]
    name = f"threads {next(_indices)}"
    for each in made:
        each.calls.store = name
    return made


def abort(communicator: HostCommunicator, reason: str) -> None:
    """End the communicator of a thread, and all made from it; any thread may call.

    Calls that wait for other ranks, and later calls, then raise an error.
    """
    communicator.abort(reason)
    for engine in progress_engines():
        made = engine.calls.transport
        if isinstance(made, ThreadTransport) and made.first is communicator.calls.transport:
            engine.end(CommAborted(left(made.rank, made.size, reason)))


def leave(communicator: HostCommunicator) -> None:
    """Send a farewell on the communicator of a thread that ends, and on all made from it.

    Without the farewell the ranks that wait for this rank would wait for the whole timeout.
    """
    communicator.calls.transport.leave(RETURNED)


def release(made: Sequence[HostCommunicator]) -> None:
    """Release the memory of a group whose threads have ended, also of what they left in flight."""
    firsts = [each.calls.transport for each in made]
    progress.release(lambda each: isinstance(each, ThreadTransport) and each.first in firsts)


def become(communicator: HostCommunicator) -> None:
    """Make this thread a rank, to its end."""
    forget_thread(concurrency.get_ident())  # the stores of an ended rank may not have been closed
    _current.communicator = communicator
    logger.set_thread_rank(communicator.rank)
    communicator.calls.recorder.identify()
    _rank_threads.add(concurrency.current_thread())


def is_rank() -> bool:
    """Return whether this thread is a rank."""
    return _current.communicator is not None


def refuse_other_threads() -> None:
    """Refuse a thread that a rank may have started: its store would be alone, with wrong sums.

    Raises
    ------
    UsageError
        While threads are ranks, in a thread that is neither a rank nor the main thread.
    """
    this = concurrency.current_thread()
    if is_rank() or this is concurrency.main_thread():
        return
    ranks = sorted(each.name for each in tuple(_rank_threads) if each.is_alive())
    if ranks:
        raise UsageError(
            f"thread {this.name!r} is not a rank, but run_ranks runs ({', '.join(ranks)}): a store "
            f"of this thread would be alone; create the store in the function that run_ranks "
            f"calls, and push from other threads inside kv.overlap(), or create 'local' to be alone"
        )


def are_ranks_of(communicator: Communicator) -> bool:
    """Return whether the ranks of a communicator are threads."""
    return communicator.name == ThreadTransport.name


def world(timeout: float | None = None) -> Communicator:
    """Make a communicator of all ranks of this thread's group.

    A thread that is no rank gets a communicator of this process alone, except for those of
    `refuse_other_threads`.
    """
    refuse_other_threads()
    if _current.communicator is None:
        return SoloCommunicator(env.timeout(timeout))
    _record_creation(_current.communicator)
    return _current.communicator.duplicate(timeout)


def _record_creation(communicator: HostCommunicator) -> None:
    """Record a creation as a call of the group, so that ranks which wait elsewhere are found."""
    log, frame = communicator.calls.recorder.log, _getframe()
    text = f"create() at {call_site(frame)}"
    log.append(log.find(0, 0, frame) or log.intern(0, 0, text, frame), 0)
