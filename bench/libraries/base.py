"""`Library`: the interface that the benchmark needs of another library."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from ncclkv.comm.base import Communicator
from ncclkv.comm.types import Buffer

Wait = Callable[[], None]


class Absent(Exception):
    """Error: the library cannot be used here, and the text says why."""


class Library(ABC):
    """A library that sums float32 arrays over the same ranks.

    Attributes
    ----------
    name : str
        One word for tables.
    version : str
    """

    name: str
    version: str

    @abstractmethod
    def start(self, send: Buffer, receive: Buffer) -> Wait:
        """Launch the sum of `send` into `receive`, which may be the same array; return its wait."""

    def copy(self, into: Sequence[Buffer], arrays: Sequence[Buffer]) -> None:
        """Copy arrays as the library's own users would."""
        for target, array in zip(into, arrays, strict=True):
            target[...] = array

    def forget(self) -> None:
        """Release the arrays that the library holds."""
        return None

    def close(self) -> None:
        """Free the library's resources; collective."""
        return None


class Ours(Library):
    """The communicator that is measured, as a library."""

    name = "ncclkv"

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm
        self.version = comm.name

    def start(self, send: Buffer, receive: Buffer) -> Wait:
        return self._comm.allreduce(send, receive).wait


def nothing() -> None:
    """Return at once: the wait of a blocking call."""
    return None
