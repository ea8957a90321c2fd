"""Messages between two ranks: what the collectives on hosts are made of."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Protocol

from ncclkv.comm.base import Buffer


class Pending(Protocol):
    """A message on its way."""

    peer: int
    """The rank at the other end."""

    def done(self) -> bool:
        """Whether the message has left, or has arrived, and its buffer is free again."""


class Transport(ABC):
    """A group of ranks that can send each other bytes.

    Messages between the same two ranks with the same tag arrive in the order of sending; at most
    one such message at a time is being received.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    name: str

    @abstractmethod
    def send(self, data: Buffer, peer: int, tag: int) -> Pending:
        """Start sending `data`, which must not change until the message is done."""

    @abstractmethod
    def receive(self, into: Buffer, peer: int, tag: int) -> Pending:
        """Start receiving a message of exactly the length of `into`."""

    @abstractmethod
    def pause(self, attempt: int) -> None:
        """Let others run, between two looks at what is pending; `attempt` counts from 1."""

    @abstractmethod
    def departed(self) -> dict[int, str]:
        """Ranks that said that they left, with the reason they gave."""

    @abstractmethod
    def leave(self, reason: str) -> None:
        """Tell all peers that this rank has left; returns at once."""

    @abstractmethod
    def split(self, color: int, key: int) -> Transport:
        """The transport of the ranks of one color; collective."""

    @abstractmethod
    def close(self) -> None:
        """Free what the transport holds, after all ranks have agreed to stop using it."""
