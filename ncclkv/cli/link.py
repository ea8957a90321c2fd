"""Link: the connection of a rank's supervisor to ``ncclkv run``."""

from __future__ import annotations

import errno
import hmac
import os
import select
import socket
from collections.abc import Iterator

from ncclkv import concurrency
from ncclkv.cli import protocol

ANSWER_SECONDS = 3.0
"""Seconds for a peer that accepted a connection to prove that it is the runner."""

FULL_BYTES = 4 * protocol.CHUNK
"""Maximum count of unsent bytes with which more output may be read."""


class RunnerEnded(Exception):
    """The runner has ended."""


class Link:
    """A connection to a runner that has sent its proof.

    Attributes
    ----------
    unsent : bytearray
        Bytes that the connection has not taken yet.
    """

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._connection = connection
        self._received = bytearray()
        self.unsent = bytearray()

    def fileno(self) -> int:
        """Return the descriptor, for `select`."""
        return self._connection.fileno()

    def send(self, kind: bytes, data: bytes = b"") -> None:
        """Send a frame after the unsent frames; keep what the connection does not take."""
        self.unsent += protocol.frame(kind, data)
        self.flush()

    def flush(self) -> None:
        """Send as many bytes as the connection takes without blocking.

        Raises
        ------
        RunnerEnded
            When the runner has ended.
        OSError
            When the network fails.
        """
        try:
            while self.unsent:
                del self.unsent[: self._connection.send(self.unsent)]
        except BlockingIOError:
            pass
        except (BrokenPipeError, ConnectionResetError) as error:
            raise RunnerEnded from error

    def receive(self) -> list[tuple[bytes, bytes]]:
        """Return kind and data of the runner's frames that have arrived; raise as `flush` does."""
        try:
            data = self._connection.recv(protocol.CHUNK)
        except BlockingIOError:
            return []
        except ConnectionResetError as error:
            raise RunnerEnded from error
        if not data:
            raise RunnerEnded
        self._received += data
        return [*protocol.take_frames(self._received)]


def connect(address: str, rank: int, secret: bytes, seconds: float) -> Link:
    """Connect to the runner, and wait for its proof.

    Parameters
    ----------
    address : str
        ``"@NAME"``, an abstract Unix socket of this machine, or ``"PORT/HOST,HOST,..."`` with the
        numeric addresses of all the runner's interfaces, which are tried at once.
    rank : int
    secret : bytes
    seconds : float
        Deadline.

    Raises
    ------
    OSError
        When no address leads to the runner.
    """
    limit = concurrency.monotonic() + seconds
    problem: OSError = TimeoutError(f"no answer in {seconds:g} s")
    for attempt in _attempts(address, limit):
        if isinstance(attempt, OSError):
            problem = attempt
            continue
        try:
            return Link(_greet(attempt, rank, secret))
        except OSError as error:
            problem = error
            attempt.close()
    raise problem


def _attempts(address: str, limit: float) -> Iterator[socket.socket | OSError]:
    """Yield for each address a socket, or the error of the attempt; `recv` may raise it instead."""
    pending = []
    for family, target in _targets(address):
        try:
            connection = socket.socket(family, socket.SOCK_STREAM)
        except OSError as error:  # a machine without IPv6
            yield error
            continue
        # A Unix socket blocks while the runner's queue is full; non-blocking it would fail.
        connection.setblocking(family == socket.AF_UNIX)
        code = connection.connect_ex(target)
        if code in (0, errno.EINPROGRESS):
            pending.append(connection)
        else:
            connection.close()
            yield OSError(code, os.strerror(code))
    try:
        while pending and (left := limit - concurrency.monotonic()) > 0:
            _, ready, _ = select.select([], pending, [], left)
            for connection in ready:
                pending.remove(connection)
                yield connection
    finally:
        for connection in pending:
            connection.close()


def _targets(address: str) -> Iterator[tuple[int, str | tuple[str, int]]]:
    """Yield family and address of each interface of the runner."""
    if address.startswith("@"):
        yield socket.AF_UNIX, "\0" + address[1:]
        return
    port, _, hosts = address.partition("/")
    for host in hosts.split(","):
        yield socket.AF_INET6 if ":" in host else socket.AF_INET, (host, int(port))


def _greet(connection: socket.socket, rank: int, secret: bytes) -> socket.socket:
    """Exchange proofs with the runner; waits for its proof."""
    connection.settimeout(ANSWER_SECONDS)
    protocol.keep_alive(connection)
    nonce = os.urandom(protocol.NONCE_BYTES)
    challenge = _receive_exactly(connection, protocol.NONCE_BYTES)
    own = protocol.HELLO_FORM.pack(
        rank, nonce, protocol.proof(secret, f"rank {rank}", challenge, nonce)
    )
    connection.sendall(protocol.frame(protocol.HELLO, own))
    expected = protocol.proof(secret, "runner", challenge, nonce)
    if not hmac.compare_digest(_receive_exactly(connection, protocol.PROOF_BYTES), expected):
        raise ConnectionRefusedError("another program answers there")
    return connection


def _receive_exactly(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        piece = connection.recv(count - len(data))
        if not piece:
            raise ConnectionResetError("the connection was closed before it was proven")
        data += piece
    return data
