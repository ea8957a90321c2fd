"""Ranks that are threads of one process: for tests and for trying things at any size."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from ncclkv import env
from ncclkv.comm.base import Communicator
from ncclkv.comm.buffers import allocate
from ncclkv.comm.host.communicator import HostCommunicator
from ncclkv.comm.solo import SoloCommunicator
from ncclkv.comm.transport import Request, Transport, WrongLength
from ncclkv.comm.types import Buffer
from ncclkv.system.memory import room

# The longest that a waiting thread sleeps before it looks at its deadline again.
_PAUSE_SECONDS = 0.005

_Address = tuple[int, int, int]


@dataclass
class _Letter(Request):
    """A message that its sender still owns."""

    data: Buffer
    peer: int
    taken: bool = False

    def done(self) -> bool:
        return self.taken


@dataclass
class _Split:
    """A split under way: colors and keys by rank, the groups made of them, and who has his."""

    votes: dict[int, tuple[int, int]] = field(default_factory=dict)
    groups: dict[int, ThreadGroup] = field(default_factory=dict)
    served: int = 0


@dataclass
class _Window:
    """A window that is being made: each rank's memory, and how many ranks have all of it."""

    parts: dict[int, Buffer] = field(default_factory=dict)
    served: int = 0


class ThreadGroup:
    """Mailboxes and farewells of one group of threads, and the groups split off it."""

    def __init__(
        self, size: int, parent: ThreadGroup | None = None, ranks: Sequence[int] = ()
    ) -> None:
        self.size = size
        self._parent, self._parent_ranks = parent, ranks
        self.changed = threading.Condition()
        self.boxes: dict[_Address, deque[_Letter]] = {}
        self._departed: dict[int, str] = {}
        self.inboxes: list[list[tuple[int, bytes]]] = [[] for _ in range(size)]
        self.version = 0
        self._splits: dict[int, _Split] = {}
        self._windows: dict[int, _Window] = {}

    def announce(self) -> None:
        """Wake the ranks that wait; the caller holds `changed`."""
        self.version += 1
        self.changed.notify_all()

    def depart(self, rank: int, reason: str) -> None:
        """Note that a rank has left this group, and all that were split off it."""
        with self.changed:
            self._departed[rank] = reason
            self.announce()

    def left_ranks(self) -> dict[int, str]:
        """Ranks that have left this communicator or the one it was split from."""
        above = {} if self._parent is None else self._parent.left_ranks()
        inherited = {
            rank: above[old] for rank, old in enumerate(self._parent_ranks) if old in above
        }
        return {**inherited, **self._departed}

    def split(self, number: int, rank: int, color: int, key: int) -> tuple[ThreadGroup, list[int]]:
        """The group of the `number`-th split that has `color`, and its members' old ranks."""
        with self.changed:
            split = self._splits.setdefault(number, _Split())
            split.votes[rank] = (color, key)
            self.changed.notify_all()
            # Needs no deadline: all ranks have just met in the exchange that precedes a split.
            self.changed.wait_for(lambda: len(split.votes) == self.size)
            chosen = [(vote[1], who) for who, vote in split.votes.items() if vote[0] == color]
            ranks = [who for _, who in sorted(chosen)]
            group = split.groups.setdefault(color, ThreadGroup(len(ranks), self, ranks))
            split.served += 1
            if split.served == self.size:
                del self._splits[number]
            return group, ranks

    def window(self, number: int, rank: int, part: Buffer) -> dict[int, Buffer]:
        """Return the memory that each rank gives to the `number`-th window."""
        with self.changed:
            window = self._windows.setdefault(number, _Window())
            window.parts[rank] = part
            self.changed.notify_all()
            # As in a split: all ranks have just met.
            self.changed.wait_for(lambda: len(window.parts) == self.size)
            window.served += 1
            if window.served == self.size:
                del self._windows[number]
            return window.parts


@dataclass
class _Awaited(Request):
    """A message that its receiver looks for in its mailbox."""

    group: ThreadGroup
    address: _Address
    into: Buffer
    peer: int
    arrived: bool = field(default=False)

    def done(self) -> bool:
        if not self.arrived:
            with self.group.changed:
                box = self.group.boxes.get(self.address)
                if not box:
                    return False
                _take(box.popleft(), self.into, self.address)
                if not box:
                    del self.group.boxes[self.address]
                self.arrived = True
                self.group.announce()
        return True


def _take(letter: _Letter, into: Buffer, address: _Address) -> None:
    """Copy a message out of its sender's memory."""
    if letter.data.size != into.size:
        raise WrongLength(address[1], address[0], letter.data.size, into.size)
    np.copyto(into, letter.data)
    letter.taken = True


class ThreadTransport(Transport):
    """One thread's end of a `ThreadGroup`."""

    name = "threads"

    def __init__(self, group: ThreadGroup, rank: int) -> None:
        self.rank, self.size = rank, group.size
        self.node = env.split_node(range(group.size), rank)
        self._group = group
        self._splits = 0
        self._windows = 0
        self._seen = -1
        self.inbox = group.inboxes[rank]

    def send(self, data: Buffer, peer: int, tag: int) -> Request:
        letter = _Letter(data, peer)
        with self._group.changed:
            self._group.boxes.setdefault((self.rank, peer, tag), deque()).append(letter)
            self._group.announce()
        return letter

    def receive(self, into: Buffer, peer: int, tag: int) -> Request:
        return _Awaited(self._group, (peer, self.rank, tag), into, peer)

    def pause(self, attempt: int) -> None:
        # What came since the last pause may not have been looked at: only when nothing did, sleep.
        with self._group.changed:
            if self._seen == self._group.version:
                self._group.changed.wait(_PAUSE_SECONDS)
            self._seen = self._group.version

    def notify(self) -> None:
        with self._group.changed:
            self._group.announce()

    def windows_left(self) -> int:
        left = room()
        if left is None:
            raise OSError("nothing here says how much memory is free")
        return left.nbytes

    def window(self, nbytes: int) -> list[Buffer]:
        self._windows += 1
        parts = self._group.window(self._windows, self.rank, allocate(nbytes))
        return [parts[rank] for rank in self.node]

    def left_ranks(self) -> dict[int, str]:
        return self._group.left_ranks()

    def post(self, data: bytes, peers: Iterable[int]) -> None:
        with self._group.changed:
            for peer in peers:
                self._group.inboxes[peer].append((self.rank, data))
            self._group.announce()

    def leave(self, reason: str) -> None:
        self._group.depart(self.rank, reason)

    def split(self, color: int, key: int) -> Transport:
        self._splits += 1
        group, members = self._group.split(self._splits, self.rank, color, key)
        return ThreadTransport(group, members.index(self.rank))

    def close(self) -> None:
        return None


class _Current(threading.local):
    """The communicator of the rank that this thread is."""

    communicator: Communicator | None = None


_current = _Current()


def communicators(size: int, timeout: float) -> Sequence[Communicator]:
    """One end for each rank of a new group."""
    group = ThreadGroup(size)
    return [HostCommunicator(ThreadTransport(group, rank), timeout) for rank in range(size)]


def become(communicator: Communicator | None) -> None:
    """Make this thread a rank, or with None no rank any more."""
    _current.communicator = communicator


def is_rank() -> bool:
    """Return whether this thread is a rank."""
    return _current.communicator is not None


def world(timeout: float | None = None) -> Communicator:
    """A communicator of all ranks that are threads; elsewhere of this process alone."""
    if _current.communicator is None:
        return SoloCommunicator(env.timeout(timeout))
    return _current.communicator.duplicate(timeout)
