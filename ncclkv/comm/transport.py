"""`Transport`: messages between two ranks, from which the collectives of hosts are made."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ncclkv.comm.types import Buffer
from ncclkv.errors import OrderMismatch


class Request(Protocol):
    """A message on its way."""

    peer: int = -1
    """The rank at the other end; -1 for a request that waits for several ranks."""

    def done(self) -> bool:
        """Return whether the message is sent or received, and its buffer free again."""

    def poll(self) -> bool:
        """Return whether `done` may have changed; cheaper than `done` for some requests."""
        return True

    def awaited(self) -> Sequence[int]:
        """Return the ranks that this request waits for."""
        return (self.peer,)


@dataclass(frozen=True)
class LocalRequest(Request):
    """A request that needs no message: it is done once a condition holds on this rank.

    Attributes
    ----------
    peer : int
    condition : callable
        Returns whether the condition holds; by default always True.
    """

    peer: int = -1
    condition: Callable[[], bool] = lambda: True

    def done(self) -> bool:
        return self.condition()


Steps = Generator[Sequence[Request], None, None]
"""A collective as a generator: it continues when all messages that it yielded are done.

The error of a message is thrown into the generator.
"""


class WrongLength(OrderMismatch):
    """A message is not as long as its receiver expects.

    Parameters
    ----------
    rank, peer : int
        The receiver, and the sender.
    count, expected : int
        Bytes.
    """

    def __init__(self, rank: int, peer: int, count: int, expected: int) -> None:
        super().__init__(
            f"rank {rank}: rank {peer} sent {count} bytes where {expected} were expected; the two "
            f"ranks made different calls",
            ranks=[peer],
        )
        self.rank, self.peer, self.count, self.expected = rank, peer, count, expected


class PeerFailed(Exception):
    """A message to or from a peer failed, or the peer's process has ended.

    Parameters
    ----------
    peer : int
    report : str
        What the library that carries messages reported; empty when it was not asked.
    """

    def __init__(self, peer: int, report: str = "") -> None:
        super().__init__(f"rank {peer}: {report}")
        self.peer, self.report = peer, report


class Messages(ABC):
    """Ranks that can send each other bytes.

    Messages with the same sender, receiver and tag arrive in the order of sending.  A receiver
    waits for at most one such message at a time.
    """

    rank: int
    size: int

    @abstractmethod
    def send(self, data: Buffer, peer: int, tag: int) -> Request:
        """Start sending `data`, which must not change until the message is done.

        Raises
        ------
        PeerFailed
            Here, or by the message's `done`.
        """

    @abstractmethod
    def receive(self, into: Buffer, peer: int, tag: int) -> Request:
        """Start receiving a message of exactly the length of `into`."""


class Transport(Messages):
    """One rank's end of a group that sends messages.

    Attributes
    ----------
    node : sequence of int
        The ranks that are on this rank's node, in order.
    name : str
    spin_limit : int
        Count of pauses so short that a launch may make them.
    inbox : list of (int, bytes)
        Notices that `left_ranks` has received, each with its sender.
    thread_multiple : bool
        Whether several threads of a process may communicate at once.
    """

    node: Sequence[int]
    name: str
    spin_limit = 0
    inbox: list[tuple[int, bytes]]
    thread_multiple = True

    @abstractmethod
    def pause(self, attempt: int) -> None:
        """Yield the processor between two polls of pending requests; `attempt` counts from 1."""

    @abstractmethod
    def notify(self) -> None:
        """Wake the ranks of this node that pause: the memory of the node has changed."""

    def windows_left(self) -> int:
        """Return the bytes that new windows of this node, of all its ranks, can take; local.

        Raises
        ------
        OSError
            When this transport has no windows, or the free memory is unknown.
        """
        raise OSError(f"{self.name} has no windows")

    def window(self, nbytes: int) -> list[Buffer]:
        """Allocate memory that the ranks of this node share; collective over all ranks.

        Parameters
        ----------
        nbytes : int
            Bytes for each rank, equal on all ranks of a node; a multiple of a page.

        Returns
        -------
        list of ndarray, shape (nbytes,)
            The memory of each rank of the node, zero at first, aligned to `ALIGNMENT`.  Each array
            stays mapped as long as it is used.

        Raises
        ------
        OSError
            When the memory cannot be allocated.
        """
        raise OSError(f"{self.name} has no windows")

    def has_ended(self, peer: int) -> bool:
        """Return whether the process of a peer is known to have ended."""
        return False

    @abstractmethod
    def left_ranks(self) -> dict[int, str]:
        """Return the ranks that have left, with their reasons; fills `inbox`, too."""

    @abstractmethod
    def post(self, data: bytes, peers: Iterable[int]) -> None:
        """Start to send a notice to peers, which find it in their `inbox`; returns at once."""

    @abstractmethod
    def leave(self, reason: str) -> None:
        """Send all peers a farewell with the reason; returns at once."""

    @abstractmethod
    def split(self, color: int, key: int) -> Transport:
        """Make a transport of the ranks with the same color, ordered by `key`; collective."""

    @abstractmethod
    def close(self) -> None:
        """Free what the transport holds, after all ranks have agreed to stop using it."""
