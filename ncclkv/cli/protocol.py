"""Protocol of ``ncclkv run`` and the supervisors of its ranks: frames, and proofs.

Both send frames: a kind (a byte), a length (four bytes) and that many bytes.

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
MASTER = b"m"
PAGES = b"p"
"""Kinds of a supervisor's frames: `HELLO_FORM`; pid and host; output; a signal's number; a line of
`notify`; an exit code; host and a free port of rank 0, for `torch_env`; a chunk of
`rank_pages.pack`, the last one empty."""

HELLO_FORM = struct.Struct(f"!I{NONCE_BYTES}s{PROOF_BYTES}s")
"""Rank, nonce and proof of a supervisor."""

KILL = b"K"
SIGNAL = b"S"
ALL_ENDED = b"A"
LOOK = b"L"
"""Kinds of the runner's frames, beside `MASTER` with an address: end the command now; send it a
signal, with the number; every rank has ended; send the pages of a request of `rank_pages`."""

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


def take_frames(received: bytearray) -> Iterator[tuple[bytes, bytes]]:
    """Remove the whole frames from `received`; yield kind and data of each.

    Raises
    ------
    OSError
        When the bytes are no frames.
    """
    while len(received) >= _HEAD.size:
        kind, length = _HEAD.unpack_from(received)
        if length > CHUNK:
            raise OSError(f"a frame of {length} bytes, and {CHUNK} are allowed")
        end = _HEAD.size + length
        if end > len(received):
            return
        data = bytes(received[_HEAD.size : end])
        del received[:end]
        yield kind, data


def proof(secret: bytes, who: str, challenge: bytes, nonce: bytes) -> bytes:
    """Return the proof by which a peer recognises `who`: ``"runner"``, or such as ``"rank 3"``."""
    return hmac.digest(secret, b"\0".join((who.encode(), challenge, nonce)), "sha256")


def keep_alive(connection: socket.socket) -> None:
    """Make a TCP connection send small frames at once, and fail after its peer's host failed."""
    if connection.family == socket.AF_UNIX:
        return
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEPALIVE:
        connection.setsockopt(socket.IPPROTO_TCP, option, value)
