"""Framing: messages that begin with the call digest, which ranks with equal calls share.

A short message carries the digest in front of its data: a copy is faster than another message.  A
long message follows a message of the digest alone.

If a message has another length than its receiver expects, the receiver raises `WrongLength` with
both lengths.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from ncclkv.comm.transport import Messages, Request, WrongLength
from ncclkv.comm.types import Buffer
from ncclkv.errors import OrderMismatch

COPIED_BYTES = 16 * 1024
"""Data of at most this size are copied behind the digest."""

_DIGEST_BYTES = 8


def send(transport: Messages, data: Buffer, peer: int, tag: int, digest: int) -> Request:
    """Start to send bytes with a digest."""
    head = np.array([digest], np.int64).view(np.uint8)
    if data.size <= COPIED_BYTES:
        return transport.send(np.concatenate([head, data]), peer, tag)
    return _Both(transport.send(head, peer, tag), transport.send(data, peer, tag))


class _Both(Request):
    """Two messages to a peer."""

    def __init__(self, first: Request, second: Request) -> None:
        self.peer = first.peer
        self._pending = [first, second]

    def done(self) -> bool:
        self._pending = [message for message in self._pending if not message.done()]
        return not self._pending


class Received(Request):
    """A message whose digest is compared first; the bytes of a wrong message are not written."""

    def __init__(self, transport: Messages, into: Buffer, peer: int, tag: int, digest: int) -> None:
        copied = into.size if into.size <= COPIED_BYTES else 0
        self._head = np.empty(_DIGEST_BYTES + copied, np.uint8)
        self._into, self._digest = into, digest
        self._first = transport.receive(self._head, peer, tag)
        self._receive_rest = partial(transport.receive, into, peer, tag)
        self._second: Request | None = None
        self.peer = self._first.peer

    def done(self) -> bool:
        if self._second is None:
            if not self._has_arrived():
                return False
            self._check()
            if self._head.size > _DIGEST_BYTES or not self._into.size:
                self._into[...] = self._head[_DIGEST_BYTES:]
                return True
            self._second = self._receive_rest()
        return self._second.done()

    def _has_arrived(self) -> bool:
        """Return whether the first part has arrived."""
        try:
            return self._first.done()
        except WrongLength as error:
            # Report payload lengths without the 8-byte digest; refusals are empty and carry none.
            sent = max(0, error.count - _DIGEST_BYTES)
            expected = error.expected - _DIGEST_BYTES
            raise WrongLength(error.rank, error.peer, sent, expected) from error

    def _check(self) -> None:
        """Refuse another digest than this rank's."""
        if self._head[:_DIGEST_BYTES].view(np.int64)[0] != self._digest:
            raise OrderMismatch(
                f"rank {self._first.peer} made this call after other calls than this rank",
                ranks=[self._first.peer],
            )
