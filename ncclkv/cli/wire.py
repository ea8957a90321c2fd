"""Wire format between ``ncclkv run`` and the supervisors of its ranks: frames, and proofs.

A supervisor sends frames: a kind (a byte), a length (four bytes) and that many bytes.  The runner
sends kinds alone.

First both prove that they have the secret, which is never sent.  The runner sends a challenge.  The
supervisor answers by a frame with its rank, a nonce of its own and a proof.  The runner answers by
its own proof.
"""

from __future__ import annotations

import hmac
import socket
import struct
from collections.abc import Iterator

SECRET = "NCCLKV_RUN_SECRET"
"""Variable with the secret of a runner and its supervisors."""

NONCE_BYTES = 32
PROOF_BYTES = 32

HELLO = b"h"
BEGAN = b"b"
OUT, ERR = b"o", b"e"
STOPPED, CONTINUED = b"s", b"c"
EVENT = b"n"
ENDED = b"x"
"""Kinds of a supervisor's frames: `HELLO_FORM`; pid and host; output; a signal's number; a line of
`notify`; an exit code."""

HELLO_FORM = struct.Struct(f"!I{NONCE_BYTES}s{PROOF_BYTES}s")
"""Rank, nonce and proof of a supervisor."""

KILL = b"K"
ALL_ENDED = b"A"
"""Bytes of the runner: end the command now; every rank has ended."""

CHUNK = 1 << 16
"""Maximum bytes of data in a frame."""

_HEAD = struct.Struct("!cI")

# Finds a peer whose host has failed after two minutes instead of two hours.
_KEEPALIVE = (
    (socket.TCP_KEEPIDLE, 30),
    (socket.TCP_KEEPINTVL, 10),
    (socket.TCP_KEEPCNT, 9),
    (socket.TCP_USER_TIMEOUT, 120_000),
)


def frame(kind: bytes, data: bytes = b"") -> bytes:
    r"""Return a frame's bytes.

    Examples
    --------
    >>> frame(OUT, b"hi")
    b'o\x00\x00\x00\x02hi'
    """
    return _HEAD.pack(kind, len(data)) + data


class Frames:
    """Cuts a stream of bytes into frames."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield kind and data of each frame that these bytes complete; raise for other bytes."""
        self._rest += data
        start = 0
        while len(self._rest) - start >= _HEAD.size:
            kind, length = _HEAD.unpack_from(self._rest, start)
            if length > CHUNK:
                raise OSError(f"a frame of {length} bytes, and {CHUNK} are allowed")
            end = start + _HEAD.size + length
            if end > len(self._rest):
                break
            yield kind, self._rest[start + _HEAD.size : end]
            start = end
        self._rest = self._rest[start:]


def rank_proof(secret: bytes, rank: int, challenge: bytes, nonce: bytes) -> bytes:
    """Return the proof by which the runner recognises the supervisor of a rank."""
    return _proof(secret, b"rank %d" % rank, challenge, nonce)


def runner_proof(secret: bytes, challenge: bytes, nonce: bytes) -> bytes:
    """Return the proof by which a supervisor recognises the runner."""
    return _proof(secret, b"runner", challenge, nonce)


def _proof(secret: bytes, *parts: bytes) -> bytes:
    return hmac.digest(secret, b"\0".join(parts), "sha256")


def keep_alive(connection: socket.socket) -> None:
    """Make a TCP connection send small frames at once, and fail after its peer's host failed."""
    if connection.family == socket.AF_UNIX:
        return
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEPALIVE:
        connection.setsockopt(socket.IPPROTO_TCP, option, value)
