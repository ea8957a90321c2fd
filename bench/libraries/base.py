"""What the bench asks of another library."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from ncclkv.comm.base import Communicator
from ncclkv.comm.types import Buffer

Wait = Callable[[], None]


class Absent(Exception):
    """The library cannot be used here; the text says why."""


class Peer(ABC):
    """A library that sums float32 arrays over the same ranks.

    Attributes
    ----------
    name : str
        In a word, for tables.
    version : str
    """

    name: str
    version: str

    @abstractmethod
    def start(self, send: Buffer, receive: Buffer) -> Wait:
        """Begin to sum `send` into `receive`, which may be the same array; the result waits."""

    def copy(self, into: Sequence[Buffer], arrays: Sequence[Buffer]) -> None:
        """Copy arrays as the library's own users would."""
        for target, array in zip(into, arrays, strict=True):
            target[...] = array

    def forget(self) -> None:
        """Let go of the arrays that it was given."""
        return None

    def close(self) -> None:
        """Free what the library holds; collective."""
        return None


class Ours(Peer):
    """The communicator that is measured, in the same form."""

    name = "ncclkv"

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm
        self.version = comm.name

    def start(self, send: Buffer, receive: Buffer) -> Wait:
        return self._comm.allreduce(send, receive).wait


def nothing() -> None:
    """Wait for what is done already."""
    return None
