"""Messages of a group in a stream: it compares the ranks' sends, moves the data, and writes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tests.nccl.standin.calls import Placed
from tests.nccl.standin.errors import RefusedByStandIn
from tests.nccl.standin.handle import Handle
from tests.nccl.standin.memory import POISON
from tests.nccl.standin.operation import Operation


class Exchange(Operation):
    """The messages of one rank after the end of its group.

    All ranks take part, each with its counts to and from each other rank. NCCL would not involve
    ranks without messages: here they end a group without calls.
    """

    def __init__(self, handle: Handle, messages: Sequence[Placed]) -> None:
        super().__init__(handle, "messages")
        self._sent = self._by_peer(messages, "send")
        self._received = self._by_peer(messages, "receive")
        self._rows = np.zeros((handle.size, 2, handle.size), np.int64)
        self._everything: np.ndarray | None = None

    def _by_peer(self, messages: Sequence[Placed], kind: str) -> dict[int, np.ndarray]:
        """Return the memory of the messages of one kind, by peer."""
        memory: dict[int, np.ndarray] = {}
        for placed in messages:
            call = placed.call
            if call.kind != kind or call.root is None:
                continue
            if call.root in memory:
                raise RefusedByStandIn(f"two messages in one group for one place: {call}")
            span = placed.send if kind == "send" else placed.receive
            memory[call.root] = span.allocation.bytes(span.lo, span.hi)
        return memory

    def _begin(self) -> None:
        """Read the inputs, poison the outputs, and send the counts to the other ranks."""
        self._inputs = {peer: memory.copy() for peer, memory in self._sent.items()}
        for memory in self._received.values():
            memory[:] = POISON
        own = self._rows[self.handle.rank]
        for row, memories in zip(own, (self._sent, self._received), strict=True):
            for peer, memory in memories.items():
                row[peer] = memory.size
        self.handle.started += 1
        self._work = self.handle.host.allgather(own.reshape(-1).copy(), self._rows.reshape(-1))

    def _compare(self) -> None:
        """Refuse receives that differ from their sends, with equal texts on all ranks."""
        sent, received = self._rows[:, 0], self._rows[:, 1]
        for source, target in np.argwhere(sent != received.T):
            raise RefusedByStandIn(
                f"rank {source} of {self.handle.name} sends {sent[source, target]} bytes to rank "
                f"{target}, which receives {received[target, source]}: they made different calls"
            )

    def _move(self) -> None:
        """Start to move all messages."""
        longest = int(self._rows[:, 0].sum(axis=1).max())
        own = np.zeros(longest, np.uint8)
        mine = [self._inputs[peer] for peer in sorted(self._inputs)]
        if mine:
            packed = np.concatenate(mine)
            own[: packed.size] = packed
        self._everything = np.empty((self.handle.size, longest), np.uint8)
        self._work = self.handle.host.allgather(own, self._everything.reshape(-1))

    def _finish(self) -> None:
        """Write the received messages."""
        assert self._everything is not None
        for peer, memory in self._received.items():
            before = int(self._rows[peer, 0, : self.handle.rank].sum())
            memory[:] = self._everything[peer, before : before + memory.size]
        self.handle.completed += 1
