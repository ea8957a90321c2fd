"""Ends of processes on other machines, seen by TCP connections that carry no data.

MPI does not tell: a rank on another machine that was killed looks like one that is slow, and MPICH
over UCX crashes in the next message to it.  The kernel does: it refuses connections to a port, and
resets those there were, when the process that listened has ended.  A process that is stopped or
busy keeps its connections, as the kernel of its machine answers for it.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import struct
import time
from collections.abc import Iterable, Sequence, Set
from contextlib import suppress
from fcntl import ioctl
from functools import cache
from typing import NamedTuple

_CONNECT_SECONDS = 0.5
"""Limit for the connections of a new communicator; a process not reached is not watched."""

_CONFIRM_SECONDS = 0.3
"""Limit for the second attempt, which tells an end from a connection cut on the way."""

_AGAIN_SECONDS = 2.0
_AGAIN_LIMIT = 0.1
"""Between further attempts at processes that did not answer the second one, and for each."""

# A machine that is gone without a word is found after some 15 s.
_KEEPALIVE = ((socket.TCP_KEEPIDLE, 5), (socket.TCP_KEEPINTVL, 3), (socket.TCP_KEEPCNT, 3))

_MOST = 256
"""Processes that one watches: a descriptor each."""

_SIOCGIFADDR = 0x8915
_BACKLOG = 4096


class Endpoint(NamedTuple):
    """Address at which the kernel of a process's machine answers for the process.

    Attributes
    ----------
    addresses : tuple of str
        IPv4 addresses of the machine, those of the loopback device left out.
    port : int
    """

    addresses: tuple[str, ...]
    port: int


class Liveness:
    """This process's port, and its connections to those of others.

    Attributes
    ----------
    here : Endpoint
    """

    def __init__(self) -> None:
        # Nothing is ever accepted: the kernel connects, and holds the connections in its queue.
        self._listening = socket.create_server(("", 0), backlog=_BACKLOG)
        self.here = Endpoint(addresses(), self._listening.getsockname()[1])
        self._poll = select.epoll()
        self._lines: dict[int, tuple[socket.socket, Endpoint]] = {}
        self._known: dict[Endpoint, str | None] = {}
        self._ended: set[Endpoint] = set()
        self._doubtful: set[Endpoint] = set()
        self._asked = 0.0
        os.register_at_fork(after_in_child=self.close)

    def watch(self, endpoints: Iterable[Endpoint]) -> None:
        """Connect to processes that are not watched yet, all at once; they must be alive."""
        new = [each for each in endpoints if each not in self._known]
        new = new[: max(0, _MOST - len(self._known))]
        self._known.update(dict.fromkeys(new))
        tried = [(address, each) for each in new for address in each.addresses]
        for (address, endpoint), line in _connected(tried, _CONNECT_SECONDS):
            if self._known[endpoint] is None:
                self._known[endpoint] = address
                self._add(line, endpoint)
            else:
                line.close()

    def watches(self, endpoint: Endpoint) -> bool:
        """Tell whether the end of a process would be seen."""
        return self._known.get(endpoint) is not None

    def has_ended(self, endpoint: Endpoint) -> bool:
        """Tell whether a process that is watched has ended."""
        return endpoint in self.ended()

    def ended(self) -> Set[Endpoint]:
        """Return all that are watched and have ended."""
        for descriptor, _ in self._poll.poll(0):
            self._look(descriptor)
        if self._doubtful and time.monotonic() - self._asked > _AGAIN_SECONDS:
            doubtful, self._doubtful = self._doubtful, set()
            self._confirm(doubtful, _AGAIN_LIMIT)
        return self._ended

    def _add(self, line: socket.socket, endpoint: Endpoint) -> None:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEPALIVE:
            line.setsockopt(socket.IPPROTO_TCP, option, value)
        self._lines[line.fileno()] = line, endpoint
        self._poll.register(line, select.EPOLLIN | select.EPOLLRDHUP)

    def _look(self, descriptor: int) -> None:
        """Confirm a closed connection by connecting again: a network may have cut it."""
        found = self._lines.pop(descriptor, None)
        if found is None:  # another thread looks
            return
        line, endpoint = found
        self._poll.unregister(descriptor)
        line.close()
        self._confirm({endpoint}, _CONFIRM_SECONDS)

    def _confirm(self, endpoints: Set[Endpoint], seconds: float) -> None:
        """Connect to processes again; those that have ended refuse, and others may not answer."""
        refused: list[Endpoint] = []
        again = [(self._known[each] or "", each) for each in endpoints]
        made = _connected(again, seconds, refused)
        for (_, endpoint), line in made:
            self._add(line, endpoint)
        self._ended.update(refused)
        self._doubtful |= endpoints - {endpoint for (_, endpoint), _ in made} - {*refused}
        self._asked = time.monotonic()

    def close(self) -> None:
        """Close the port and all connections; a forked child does, or the port would outlive us."""
        self._listening.close()
        self._poll.close()
        for line, _ in self._lines.values():
            line.close()
        self._lines.clear()


Try = tuple[str, Endpoint]


def _connected(
    tried: Sequence[Try], seconds: float, refused: list[Endpoint] | None = None
) -> list[tuple[Try, socket.socket]]:
    """Connect to processes until each has answered; add those with a closed port to `refused`."""
    poll = select.poll()
    waiting: dict[int, tuple[socket.socket, Try]] = {}
    for address, endpoint in tried:
        line = socket.socket()
        line.setblocking(False)
        code = line.connect_ex((address, endpoint.port))
        if code not in (0, errno.EINPROGRESS):  # such as a device that is down
            line.close()
            continue
        waiting[line.fileno()] = line, (address, endpoint)
        poll.register(line, select.POLLOUT)
    made: list[tuple[Try, socket.socket]] = []
    silent, limit = {endpoint for _, endpoint in tried}, time.monotonic() + seconds
    while waiting and silent and (left := limit - time.monotonic()) > 0:
        for descriptor, _ in poll.poll(left * 1000):
            line, one = waiting.pop(descriptor)
            poll.unregister(descriptor)
            code = line.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code == 0:
                made.append((one, line))
                silent.discard(one[1])
                continue
            line.close()
            if code == errno.ECONNREFUSED and refused is not None:
                refused.append(one[1])
    for line, _ in waiting.values():
        line.close()
    return made


def addresses() -> tuple[str, ...]:
    """Return this machine's IPv4 addresses, without those of the loopback device."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # a device without an address
                answer = ioctl(asking, _SIOCGIFADDR, struct.pack("256s", name[:15].encode()))
                found.append(socket.inet_ntoa(answer[20:24]))
    return tuple(address for address in found if not address.startswith("127."))


@cache
def liveness() -> Liveness:
    """Return the one of this process, which all its communicators use."""
    return Liveness()
