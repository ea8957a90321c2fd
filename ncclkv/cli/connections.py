"""Connections of the runner to the supervisors of its ranks."""

from __future__ import annotations

import hmac
import os
import resource
import secrets
import selectors
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from ncclkv import concurrency
from ncclkv.cli import protocol
from ncclkv.comm.host.liveness import addresses

_GLOBAL_SCOPE = "00"

_HELLO_SECONDS = 10.0
"""Seconds for a process that connects to send its proof."""

_SPARE = 16
"""Unproven connections beyond one for each rank and address; the oldest are closed."""

_OTHER_FILES = 64
"""Descriptors of this process for other files."""

Take = Callable[[int, bytes, bytes], None]


class Connections:
    """Listens for the supervisors of a job's ranks, and reads their frames.

    Parameters
    ----------
    ranks : int
    port : int or None
        The TCP port to listen on, on all interfaces, 0 for any; None for this machine alone.
    selector : selectors.BaseSelector
        The data of its keys are functions without arguments, to be called on an event.
    take : callable
        ``take(rank, kind, data)`` gets each frame, and an empty kind at a connection's end.

    Attributes
    ----------
    address : str
        The argument of `link.connect`.
    secret : str
        The argument of `link.connect`, in ASCII.

    Raises
    ------
    OSError
        When the port cannot be bound.
    """

    def __init__(
        self, ranks: int, port: int | None, selector: selectors.BaseSelector, take: Take
    ) -> None:
        self.secret = secrets.token_hex(32)
        self._ranks = ranks
        self._selector = selector
        self._take = take
        self._peers: list[_Peer] = []
        self._first_frames = b""
        self._server, self.address, count = _listen(port, ranks)
        self._expected = ranks * count
        _allow_files(ranks + self._expected + _SPARE + _OTHER_FILES)
        self._server.setblocking(False)
        selector.register(self._server, selectors.EVENT_READ, self._accept)

    @property
    def open(self) -> bool:
        """Return whether any rank is connected."""
        return any(peer.rank is not None for peer in self._peers)

    def send(self, kind: bytes, data: bytes = b"", *, also_later: bool = False) -> None:
        """Send a frame, such as `protocol.KILL`, to all ranks; on demand also to those to come."""
        frame = protocol.frame(kind, data)
        if also_later:
            self._first_frames += frame
        for peer in self._peers:
            if peer.rank is not None:
                with suppress(OSError):  # reading from a broken connection reports its end
                    peer.connection.send(frame)

    def send_to(self, rank: int, kind: bytes, data: bytes) -> bool:
        """Send a frame to one rank; return whether the rank is connected."""
        for peer in self._peers:
            if peer.rank == rank:
                with suppress(OSError):
                    peer.connection.send(protocol.frame(kind, data))
                    return True
        return False

    def pause(self, ranks: set[int]) -> None:
        """Read from all ranks except `ranks`, whose output then waits on their side."""
        for peer in self._peers:
            if (peer.rank in ranks) != peer.paused:
                peer.paused = not peer.paused
                if peer.paused:
                    self._selector.unregister(peer.connection)
                else:
                    self._read_from(peer)

    def close(self) -> None:
        """Close all connections: to supervisors this is the runner's end."""
        self._server.close()
        for peer in self._peers:
            peer.connection.close()

    def _accept(self) -> None:
        """Accept a connection and send its challenge; close those that sent no proof in time."""
        now = concurrency.monotonic()
        unproven = [peer for peer in self._peers if peer.rank is None]
        excess = len(unproven) - (self._expected + _SPARE - 1)
        for index, peer in enumerate(unproven):
            if index < excess or now - peer.since > _HELLO_SECONDS:
                self._drop(peer)
        try:
            connection, _ = self._server.accept()
        except OSError:  # without a free descriptor the connection waits in the queue
            return
        connection.setblocking(False)
        protocol.keep_alive(connection)
        peer = _Peer(connection, now)
        self._peers.append(peer)
        self._read_from(peer)
        with suppress(OSError):
            connection.send(peer.challenge)

    def _read_from(self, peer: _Peer) -> None:
        self._selector.register(peer.connection, selectors.EVENT_READ, partial(self._read, peer))

    def _read(self, peer: _Peer) -> None:
        """Take the frames that have arrived from a rank, or the end of its connection."""
        if peer not in self._peers:  # dropped since the last `select`
            return
        try:
            data = peer.connection.recv(protocol.CHUNK)
            peer.received += data
            frames = [*protocol.take_frames(peer.received)]
        except BlockingIOError:
            return
        except OSError:
            data, frames = b"", []
        for kind, frame in frames:
            if peer.rank is not None:
                self._take(peer.rank, kind, frame)
            elif not self._prove(peer, kind, frame):
                data = b""
                break
        if not data:
            self._drop(peer)
            if peer.rank is not None:
                self._take(peer.rank, b"", b"")

    def _prove(self, peer: _Peer, kind: bytes, data: bytes) -> bool:
        """Return whether the first frame of a connection proves a rank; answer by our proof."""
        if kind != protocol.HELLO or len(data) != protocol.HELLO_FORM.size:
            return False
        rank, nonce, found = protocol.HELLO_FORM.unpack(data)
        secret = self.secret.encode()
        expected = protocol.proof(secret, f"rank {rank}", peer.challenge, nonce)
        connected = [each.rank for each in self._peers]
        if rank >= self._ranks or rank in connected or not hmac.compare_digest(found, expected):
            return False
        try:
            own = protocol.proof(secret, "runner", peer.challenge, nonce)
            peer.connection.send(own + self._first_frames)
        except OSError:
            return False
        peer.rank = rank
        return True

    def _drop(self, peer: _Peer) -> None:
        self._peers.remove(peer)
        self._selector.unregister(peer.connection)
        peer.connection.close()


@dataclass(eq=False)
class _Peer:
    """A connection, and the rank that its supervisor has proven; None before the proof."""

    connection: socket.socket
    since: float
    challenge: bytes = field(default_factory=lambda: os.urandom(protocol.NONCE_BYTES))
    received: bytearray = field(default_factory=bytearray)
    rank: int | None = None
    paused: bool = False


def _allow_files(count: int) -> None:
    """Raise the limit on open files to `count`, or as far as this process may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= soft < count:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(count, hard), hard))


def _listen(port: int | None, ranks: int) -> tuple[socket.socket, str, int]:
    """Return a listening socket, its address for `link.connect`, and the count of hosts in it."""
    if port is None:
        name = f"ncclkv-run-{os.getpid()}-{secrets.token_hex(4)}"
        server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        server.bind("\0" + name)
        server.listen(ranks + _SPARE)
        return server, "@" + name, 1
    dual = socket.has_dualstack_ipv6()
    hosts = [*dict.fromkeys(addresses()), "127.0.0.1", *(_addresses_6() if dual else [])]
    family = socket.AF_INET6 if dual else socket.AF_INET
    backlog = ranks * len(hosts) + _SPARE
    server = socket.create_server(("", port), family=family, backlog=backlog, dualstack_ipv6=dual)
    return server, f"{server.getsockname()[1]}/{','.join(hosts)}", len(hosts)


def _addresses_6() -> list[str]:
    """Return the IPv6 addresses of this machine that other networks can reach."""
    try:
        rows = [row.split() for row in Path("/proc/net/if_inet6").read_text().splitlines()]
    except OSError:
        return []
    found = [bytes.fromhex(row[0]) for row in rows if row[3] == _GLOBAL_SCOPE]
    return [socket.inet_ntop(socket.AF_INET6, each) for each in found]
