"""`ObjectComm`: small host objects between ranks; `CallDigest`: one integer of all calls so far."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from ncclkv.tracebacks import public


class CallDigest:
    """Digest of all calls of a store, which must be the same on all ranks at each launch.

    Attributes
    ----------
    value : int
        Of 64 bits, signed.
    """

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0


class ObjectComm(ABC):
    """Small host objects between the ranks; collective, blocking, with the same deadline.

    Attributes
    ----------
    rank : int
        This rank.
    """

    rank: int

    def __init_subclass__(cls) -> None:
        """Make the exchanges `public` that each kind of communicator has of its own."""
        super().__init_subclass__()
        for name in {"allgather", "barrier"} & vars(cls).keys():
            setattr(cls, name, public(getattr(cls, name)))

    @abstractmethod
    def allgather(self, item: Any, label: str = "") -> list[Any]:
        """Wait for every rank's `item`; return them in rank order; collective."""

    def broadcast(self, item: Any, root: int = 0, label: str = "") -> Any:
        """Wait for the root's `item`, and return it; collective.  Other items are ignored."""
        return self.allgather(item if self.rank == root else None, label)[root]

    @abstractmethod
    def barrier(self, label: str = "") -> None:
        """Wait until every rank has arrived."""
