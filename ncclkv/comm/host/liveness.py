"""Liveness: ends of processes on other machines, seen by TCP connections that carry no data.

MPI does not report such an end: a rank that was killed looks like a slow rank, and MPICH over UCX
crashes in the next message to it.  When a process ends, the kernel of its machine resets the
connections to its port, and refuses new ones.  A process that is stopped or busy keeps its
connections, because that kernel answers for it.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import struct
from collections.abc import Iterable, Mapping, Sequence, Set
from contextlib import suppress
from fcntl import ioctl
from functools import cache
from typing import NamedTuple

from ncclkv import concurrency

_CONNECT_SECONDS = 0.5
"""Limit for the connections of a new communicator; a process not reached is not watched."""

_CONFIRM_SECONDS = 0.3
"""Limit for the second attempt, which distinguishes an end from a connection cut by the network."""

_AGAIN_SECONDS = 2.0
_AGAIN_LIMIT = 0.1
"""Between further attempts at processes that did not answer the second one, and for each."""

# The kernel resets the connection to a machine that sends nothing for about 15 s.
_KEEPALIVE = ((socket.TCP_KEEPIDLE, 5), (socket.TCP_KEEPINTVL, 3), (socket.TCP_KEEPCNT, 3))

_MAX_WATCHED = 256
"""Maximum count of watched processes, of a descriptor each."""

_SIOCGIFADDR = 0x8915
_BACKLOG = 4096


class Endpoint(NamedTuple):
    """Address at which the kernel of a process's machine answers for the process.

    Attributes
    ----------
    addresses : tuple of str
        IPv4 addresses of the machine, without those of the loopback device.
    port : int
    """

    addresses: tuple[str, ...]
    port: int


_Attempt = tuple[str, Endpoint]
"""A process, and the address at which to connect to it."""


class Liveness:
    """This process's port, and its connections to the ports of other processes.

    Attributes
    ----------
    endpoint : Endpoint
        That of this process.
    """

    def __init__(self) -> None:
        # Nothing is ever accepted: the kernel connects, and holds the connections in its queue.
        self._listening = socket.create_server(("", 0), backlog=_BACKLOG)
        self.endpoint = Endpoint(addresses(), self._listening.getsockname()[1])
        self._poll = select.epoll()
        self._connections: dict[int, tuple[socket.socket, Endpoint]] = {}
        self._addresses: dict[Endpoint, str | None] = {}
        self._ended: set[Endpoint] = set()
        self._unclear: set[Endpoint] = set()
        self._tried_at = 0.0
        os.register_at_fork(after_in_child=self.close)

    def watch(self, endpoints: Iterable[Endpoint]) -> None:
        """Connect to processes that are not watched yet, all at once; they must be alive."""
        new = [each for each in endpoints if each not in self._addresses]
        new = new[: max(0, _MAX_WATCHED - len(self._addresses))]
        self._addresses.update(dict.fromkeys(new))
        attempts = [(address, each) for each in new for address in each.addresses]
        self._add(_connect(attempts, _CONNECT_SECONDS)[0])

    def watches(self, endpoint: Endpoint) -> bool:
        """Return whether the end of a process would be seen."""
        return self._addresses.get(endpoint) is not None

    def has_ended(self, endpoint: Endpoint) -> bool:
        """Return whether a watched process has ended."""
        return endpoint in self.ended()

    def ended(self) -> Set[Endpoint]:
        """Return the watched processes that have ended."""
        closed = [self._remove(descriptor) for descriptor, _ in self._poll.poll(0)]
        if closed:
            self._reconnect({each for each in closed if each}, _CONFIRM_SECONDS)
        elif self._unclear and concurrency.monotonic() - self._tried_at > _AGAIN_SECONDS:
            self._reconnect(self._unclear, _AGAIN_LIMIT)
        return self._ended

    def _add(self, made: Mapping[Endpoint, tuple[str, socket.socket]]) -> None:
        """Watch processes by connections to these addresses."""
        for endpoint, (address, connection) in made.items():
            self._addresses[endpoint] = address
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in _KEEPALIVE:
                connection.setsockopt(socket.IPPROTO_TCP, option, value)
            self._connections[connection.fileno()] = connection, endpoint
            self._poll.register(connection, select.EPOLLIN | select.EPOLLRDHUP)

    def _remove(self, descriptor: int) -> Endpoint | None:
        """Close a connection; return its process, or None if another thread has closed it."""
        found = self._connections.pop(descriptor, None)
        if found is None:
            return None
        connection, endpoint = found
        self._poll.unregister(descriptor)
        connection.close()
        return endpoint

    def _reconnect(self, endpoints: Set[Endpoint], seconds: float) -> None:
        """Connect again: the network may have cut a connection; a port refuses after the end."""
        attempts = [(self._addresses[each] or "", each) for each in endpoints]
        made, refused = _connect(attempts, seconds)
        self._add(made)
        self._ended |= refused
        self._unclear = {*self._unclear, *endpoints} - made.keys() - refused
        self._tried_at = concurrency.monotonic()

    def close(self) -> None:
        """Close the port and all connections; a forked child must not keep its parent's port."""
        self._listening.close()
        self._poll.close()
        for connection, _ in self._connections.values():
            connection.close()
        self._connections.clear()


def _connect(
    attempts: Sequence[_Attempt], seconds: float
) -> tuple[dict[Endpoint, tuple[str, socket.socket]], set[Endpoint]]:
    """Connect to processes, up to a time limit.

    Returns
    -------
    made : dict of Endpoint to (str, socket)
        The first address at which each process answered, and the connection.
    refused : set of Endpoint
        Processes with a closed port.
    """
    poll = select.poll()
    pending: dict[int, tuple[socket.socket, _Attempt]] = {}
    for address, endpoint in attempts:
        connection = socket.socket()
        connection.setblocking(False)
        code = connection.connect_ex((address, endpoint.port))
        if code not in (0, errno.EINPROGRESS):  # such as a device that is down
            connection.close()
            continue
        pending[connection.fileno()] = connection, (address, endpoint)
        poll.register(connection, select.POLLOUT)
    made: dict[Endpoint, tuple[str, socket.socket]] = {}
    refused: set[Endpoint] = set()
    wanted, limit = {endpoint for _, endpoint in attempts}, concurrency.monotonic() + seconds
    while pending and wanted - made.keys() and (left := limit - concurrency.monotonic()) > 0:
        for descriptor, _ in poll.poll(left * 1000):
            connection, (address, endpoint) = pending.pop(descriptor)
            poll.unregister(descriptor)
            code = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code == 0 and endpoint not in made:
                made[endpoint] = address, connection
                continue
            connection.close()
            if code == errno.ECONNREFUSED:
                refused.add(endpoint)
    for connection, _ in pending.values():
        connection.close()
    return made, refused


def addresses() -> tuple[str, ...]:
    """Return this machine's IPv4 addresses, without those of the loopback device."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # a device without an address
                answer = ioctl(datagrams, _SIOCGIFADDR, struct.pack("256s", name[:15].encode()))
                found.append(socket.inet_ntoa(answer[20:24]))
    return tuple(address for address in found if not address.startswith("127."))


@cache
def liveness() -> Liveness:
    """Return the `Liveness` of this process, which all its communicators use."""
    return Liveness()
