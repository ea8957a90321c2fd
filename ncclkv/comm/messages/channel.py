"""`Channel`: the messages of one collective, on a tag that no other collective in flight uses."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ncclkv.comm.messages import framing
from ncclkv.comm.transport import Messages, Request
from ncclkv.comm.types import Buffer
from ncclkv.comm.wire import Limits, Wire
from ncclkv.kernels.base import Kernels

SHORT_BYTES = 16 * 1024
"""Up to here a second trip costs more than the bytes that it saves."""

SLICE_BYTES = 2 * 1024 * 1024
"""Bytes of a rank's slice of a chunk: a chunk is this times the count of ranks.

Ranks wait for each other twice a chunk.  But a message of 4 MiB and more waits in MPICH over TCP
until the peer's own message has left: a link of 1 Gbit/s then had half of its speed.
"""

_REFUSAL = np.empty(0, np.uint8)


def limits(size: int) -> Limits:
    """Return the sizes at which sums by messages over `size` ranks change."""
    return Limits(SHORT_BYTES, SLICE_BYTES * size)


class Channel(Wire):
    """Sends and receives the messages of one collective: the `Wire` between hosts.

    The first message to each peer begins with the call digest of this rank.  The digest of the
    first message from each peer is compared before any of its payload is used.

    Parameters
    ----------
    transport : Messages
    tag : int
    kernels : Kernels
    scratch : callable
        ``scratch(nbytes)``: memory that is valid until the next call.
    digest : int
        The value of `ProgressEngine.digest` at the launch.

    Attributes
    ----------
    transport, tag, kernels
        As the parameters.
    """

    def __init__(
        self,
        transport: Messages,
        tag: int,
        kernels: Kernels,
        scratch: Callable[[int], Buffer],
        digest: int,
    ) -> None:
        super().__init__(transport.rank, transport.size, limits(transport.size))
        self.transport, self.tag, self.kernels = transport, tag, kernels
        self._scratch, self._digest = scratch, digest
        self._greeted: set[tuple[str, int]] = set()

    def scratch(self, nbytes: int) -> Buffer:
        return self._scratch(nbytes)

    def fold(self, parts: Sequence[Buffer], total: Buffer, op: str) -> None:
        self.kernels.reduce(parts, total, op)

    def among(self, messages: Messages) -> Channel:
        """Return the channel of a subset of its ranks, which `messages` numbers anew."""
        return Channel(messages, self.tag, self.kernels, self._scratch, self._digest)

    def refuse(self, peer: int) -> None:
        """Send a peer an empty message, which no peer expects: ranks have made different calls."""
        self.transport.send(_REFUSAL, peer, self.tag)

    def send(self, data: Buffer, peer: int) -> Request:
        data = data.view(np.uint8)
        if not self._is_first("send", peer):
            return self.transport.send(data, peer, self.tag)
        return framing.send(self.transport, data, peer, self.tag, self._digest)

    def receive(self, into: Buffer, peer: int) -> Request:
        into = into.view(np.uint8)
        if not self._is_first("receive", peer):
            return self.transport.receive(into, peer, self.tag)
        return framing.Received(self.transport, into, peer, self.tag, self._digest)

    def _is_first(self, direction: str, peer: int) -> bool:
        """Return whether a message is the first to a peer, or the first from it."""
        first = (direction, peer) not in self._greeted
        self._greeted.add((direction, peer))
        return first
