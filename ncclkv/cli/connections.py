"""Connections of the runner to the supervisors of its ranks."""

from __future__ import annotations

import os
import resource
import secrets
import selectors
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ncclkv.cli import wire
from ncclkv.comm.host.liveness import addresses

_GLOBAL_SCOPE = "00"

_HELLO_SECONDS = 10.0
"""Seconds for a process that connects to send its proof."""

_SPARE = 16
"""Unproven connections beyond one a rank and address; the oldest are closed."""

_OTHER_FILES = 64
"""Descriptors of this process that are no connections."""

Take = Callable[[int, bytes, bytes], None]


class Connections:
    """Listens for the supervisors of a job's ranks, and reads their frames.

    Parameters
    ----------
    ranks : int
    port : int or None
        The TCP port to listen on, on all interfaces, 0 for any; None for this machine alone.
    selector : selectors.BaseSelector
        Its keys get calls without arguments as their data.
    take : callable
        ``take(rank, kind, data)`` gets each frame, and an empty kind at a connection's end.

    Attributes
    ----------
    address : str
        As `link.connect` takes it.
    secret : str

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
        self._guests: list[_Guest] = []
        self._peers: dict[int, _Peer] = {}
        self._paused: set[int] = set()
        self._server, self.address, count = _listen(port, ranks)
        self._expected = ranks * count
        _allow_files(ranks + self._expected + _SPARE + _OTHER_FILES)
        self._server.setblocking(False)
        selector.register(self._server, selectors.EVENT_READ, self._accept)

    @property
    def open(self) -> bool:
        """Return whether any rank is connected."""
        return bool(self._peers)

    def tell(self, kind: bytes) -> None:
        """Send a frame without data to all ranks."""
        for peer in self._peers.values():
            with suppress(OSError):  # reading from a broken connection reports its end
                peer.connection.send(wire.frame(kind))

    def pause(self, ranks: set[int]) -> None:
        """Read from all ranks except `ranks`, whose output then waits on their side."""
        for rank in (ranks ^ self._paused) & self._peers.keys():
            if rank in ranks:
                self._selector.unregister(self._peers[rank].connection)
            else:
                self._listen_to(rank)
        self._paused = ranks & self._peers.keys()

    def close(self) -> None:
        """Close all connections; supervisors that still run take this for the runner's end."""
        self._server.close()
        for guest in self._guests:
            guest.connection.close()
        for peer in self._peers.values():
            peer.connection.close()

    def _accept(self) -> None:
        """Accept a connection and send its nonce; close connections that sent no proof in time."""
        now = time.monotonic()
        for old in tuple(self._guests):
            if now - old.since > _HELLO_SECONDS or len(self._guests) >= self._expected + _SPARE:
                self._dismiss(old)
        try:
            connection, _ = self._server.accept()
        except OSError:  # without a free descriptor the connection waits in the queue
            return
        connection.setblocking(False)
        wire.keep_alive(connection)
        guest = _Guest(connection, os.urandom(wire.NONCE_BYTES), now)
        self._guests.append(guest)
        self._selector.register(connection, selectors.EVENT_READ, partial(self._prove, guest))
        with suppress(OSError):
            connection.send(guest.challenge)

    def _prove(self, guest: _Guest) -> None:
        """Read the answer to a nonce; a connection that does not prove itself is closed."""
        if guest not in self._guests:  # dismissed since the last `select`
            return
        try:
            data = guest.connection.recv(wire.HELLO.size - len(guest.answer))
            guest.answer += data
            if data and len(guest.answer) < wire.HELLO.size:
                return
            whole = len(guest.answer) == wire.HELLO.size
            found = whole and wire.welcome(self.secret.encode(), guest.challenge, guest.answer)
            if not found or found[0] >= self._ranks or found[0] in self._peers:
                self._dismiss(guest)
                return
            guest.connection.send(found[1])
        except OSError:
            self._dismiss(guest)
            return
        self._guests.remove(guest)
        self._selector.unregister(guest.connection)
        self._peers[found[0]] = _Peer(guest.connection, wire.Frames())
        self._listen_to(found[0])

    def _dismiss(self, guest: _Guest) -> None:
        self._guests.remove(guest)
        self._selector.unregister(guest.connection)
        guest.connection.close()

    def _listen_to(self, rank: int) -> None:
        connection = self._peers[rank].connection
        self._selector.register(connection, selectors.EVENT_READ, partial(self._read, rank))

    def _read(self, rank: int) -> None:
        """Take the frames that have arrived from a rank, or the end of its connection."""
        peer = self._peers[rank]
        try:
            data = peer.connection.recv(wire.CHUNK)
            frames = [*peer.frames.feed(data)]
        except BlockingIOError:
            return
        except OSError:
            data, frames = b"", []
        for kind, frame in frames:
            self._take(rank, kind, frame)
        if not data:
            self._selector.unregister(peer.connection)
            peer.connection.close()
            del self._peers[rank]
            self._take(rank, b"", b"")


@dataclass
class _Guest:
    """A connection without a proof, and the bytes that it has sent so far."""

    connection: socket.socket
    challenge: bytes
    since: float
    answer: bytes = b""


@dataclass(frozen=True)
class _Peer:
    """A rank's connection."""

    connection: socket.socket
    frames: wire.Frames


def _allow_files(count: int) -> None:
    """Raise the limit on open files to `count`, or as far as this process may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= soft < count:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(count, hard), hard))


def _listen(port: int | None, ranks: int) -> tuple[socket.socket, str, int]:
    """Return a listening socket, its address for `link.connect`, and the number of hosts in it."""
    if port is None:
        name = f"ncclkv-run-{os.getpid()}-{secrets.token_hex(4)}"
        server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        server.bind("\0" + name)
        server.listen(ranks + _SPARE)
        return server, "@" + name, 1
    hosts = [*dict.fromkeys(addresses()), "127.0.0.1"]
    try:
        several = [*hosts, *_addresses_6()]
        backlog = ranks * len(several) + _SPARE
        server = socket.create_server(
            ("", port), family=socket.AF_INET6, backlog=backlog, dualstack_ipv6=True
        )
        hosts = several
    except (OSError, ValueError):  # a machine without IPv6
        server = socket.create_server(("", port), backlog=ranks * len(hosts) + _SPARE)
    return server, f"{server.getsockname()[1]}/{','.join(hosts)}", len(hosts)


def _addresses_6() -> list[str]:
    """Return the IPv6 addresses of this machine that other networks can reach."""
    try:
        rows = [row.split() for row in Path("/proc/net/if_inet6").read_text().splitlines()]
    except OSError:
        return []
    found = [bytes.fromhex(row[0]) for row in rows if row[3] == _GLOBAL_SCOPE]
    return [socket.inet_ntop(socket.AF_INET6, each) for each in found]
