"""An operation of several ranks in a stream: it compares, moves and writes, in that order."""

from __future__ import annotations

from abc import ABC, abstractmethod

from ncclkv.comm.types import Work
from ncclkv.errors import CommError
from tests.nccl.standin.errors import RefusedByStandIn
from tests.nccl.standin.handle import Handle


class Operation(ABC):
    """One rank's part of an operation.

    A rank that does not arrive blocks the others, as with NCCL.
    """

    def __init__(self, handle: Handle, kind: str) -> None:
        self.index = handle.launched
        handle.launched += 1
        self.what = f"{kind} {self.index} of {handle.name}"
        self.handle = handle
        self._work: Work | None = None
        self._moves = self._hangs = False

    @property
    def begun(self) -> bool:
        """True once the description for the other ranks was sent."""
        return self._work is not None

    def run(self, needed: bool) -> bool:
        """Continue after the messages of the last step."""
        handle = self.handle
        if handle.aborted:
            return True
        if self._hangs or not handle.may_start(self.index):
            return False
        try:
            return self._advance(needed or handle.size == 1)
        except CommError:
            # A rank that left takes its part with it. NCCL reports nothing.
            return False
        except RefusedByStandIn:
            self._hangs = handle.hangs
            if self._hangs:
                return False
            raise

    def _advance(self, needed: bool) -> bool:
        if self._work is None:
            self._begin()
        assert self._work is not None
        if not self._work.done():
            return False
        if not self._moves:
            self._compare()
            self._move()
            self._moves = True
            if not self._work.done():
                return False
        if needed:
            self._finish()
        return needed

    @abstractmethod
    def _begin(self) -> None:
        """Read the inputs, poison the outputs, and send a description to the other ranks."""

    @abstractmethod
    def _compare(self) -> None:
        """Refuse differences, with equal texts on all ranks."""

    @abstractmethod
    def _move(self) -> None:
        """Start to move the data."""

    @abstractmethod
    def _finish(self) -> None:
        """Write the outputs."""
