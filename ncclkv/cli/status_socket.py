"""Status socket: where a running job answers ``ncclkv status`` with the table of its ranks."""

from __future__ import annotations

import os
import selectors
import socket
import struct
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from ncclkv import concurrency
from ncclkv.cli import protocol, rank_pages
from ncclkv.cli.connections import Connections
from ncclkv.cli.outcome import Rank
from ncclkv.cli.rank_pages import PageAddress

if TYPE_CHECKING:
    from ncclkv.comm.diagnosis.reports import Report

PREFIX = "ncclkv-status-"
"""Begins the name of the abstract Unix socket of a runner; its process id follows."""

_ANSWER_SECONDS = 3.0
"""Seconds for the supervisors to answer."""

_CREDENTIALS = struct.Struct("3i")

_MOST_CLIENTS = 8


class StatusSocket:
    """Answers every connection of this user, or of root, by the table of the ranks.

    Parameters
    ----------
    ranks : mapping of int to Rank
    connections : Connections
    selector : selectors.BaseSelector
        The data of its keys are functions without arguments, to be called on an event.
    """

    def __init__(
        self,
        ranks: Mapping[int, Rank],
        connections: Connections,
        selector: selectors.BaseSelector,
    ) -> None:
        self._ranks, self._connections = ranks, connections
        self._clients: list[socket.socket] = []
        self._due = 0.0
        self._begin = concurrency.monotonic()
        self._asked: dict[int, list[PageAddress]] = {}
        self._pieces: dict[int, bytearray] = {}
        self._known: dict[int, list[Report]] = {}
        self._server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._server.setblocking(False)
        with suppress(OSError):  # a name of a process that had the same id
            self._server.bind(f"\0{PREFIX}{os.getpid()}")
            self._server.listen(_MOST_CLIENTS)
            selector.register(self._server, selectors.EVENT_READ, self._accept)

    def _accept(self) -> None:
        """Take a client, and ask the supervisors for the pages of their ranks."""
        try:
            client, _ = self._server.accept()
        except OSError:
            return
        client.setblocking(False)
        given = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        _, user, _ = _CREDENTIALS.unpack(given)
        if user not in (0, os.getuid()) or len(self._clients) >= _MOST_CLIENTS:
            client.close()
            return
        self._clients.append(client)
        if len(self._clients) > 1:  # it gets the same answer
            return
        self._due = concurrency.monotonic() + _ANSWER_SECONDS
        self._pieces.clear()
        self._known.clear()
        for rank in self._ranks.values():
            places = self._asked[rank.index] = [*rank.pages.values()]
            request = "\n".join(map(str, places)).encode()
            if not rank.over and self._connections.send_to(rank.index, protocol.LOOK, request):
                self._pieces[rank.index] = bytearray()

    def take(self, index: int, piece: bytes) -> None:
        """Take a piece of the pages of a rank; the last one is empty."""
        if index not in self._pieces:
            return
        if piece:
            self._pieces[index] += piece
            return
        from ncclkv.cli.ranks_now import reports  # with NumPy, which a runner needs only here

        data = bytes(self._pieces.pop(index))
        with suppress(ValueError):
            clock, pages = rank_pages.unpack(data)
            self._known[index] = reports(index, clock, self._asked[index], pages)

    def look(self) -> None:
        """Answer the clients if all ranks have answered, or the time is over."""
        if not self._clients or (self._pieces and concurrency.monotonic() < self._due):
            return
        from ncclkv.cli.ranks_now import table

        seconds = concurrency.monotonic() - self._begin
        title = f"job of ncclkv run (pid {os.getpid()}), for {seconds:.1f} s on {len(self._ranks)}"
        text = f"{title} rank{'s' * (len(self._ranks) > 1)}\n"
        text += table([*self._ranks.values()], self._known)
        for client in self._clients:
            with suppress(OSError):
                client.setblocking(True)
                client.settimeout(1.0)
                client.sendall(f"{text}\n".encode())
            client.close()
        self._clients.clear()

    def close(self) -> None:
        """Close the socket and its clients."""
        self._server.close()
        for client in self._clients:
            client.close()
