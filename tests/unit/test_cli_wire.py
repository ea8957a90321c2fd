"""Frames of the runner and its supervisors, and who is let in to send them."""

from __future__ import annotations

import os
import select
import selectors
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from ncclkv.cli import connections, link, wire
from ncclkv.cli.connections import Connections
from tests.harness.slow import stretched


def test_frames_from_pieces():
    stream = wire.frame(wire.OUT, b"abc") + wire.frame(wire.STOPPED) + wire.frame(wire.ERR, b"\n\0")
    frames = wire.Frames()
    found = [each for at in range(len(stream)) for each in frames.feed(stream[at : at + 1])]
    assert found == [(wire.OUT, b"abc"), (wire.STOPPED, b""), (wire.ERR, b"\n\0")]


def test_a_frame_that_is_too_long():
    with pytest.raises(OSError, match="a frame of 65537 bytes, and 65536 are allowed"):
        list(wire.Frames().feed(wire.frame(wire.OUT, bytes(wire.CHUNK + 1))))


class Runner:
    """The runner's side, in a thread of its own."""

    def __init__(self, port: int | None) -> None:
        self.taken: list[tuple[int, bytes, bytes]] = []
        self._selector = selectors.DefaultSelector()
        self.connections = Connections(2, port, self._selector, self._take)
        self._ends = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _take(self, rank: int, kind: bytes, data: bytes) -> None:
        self.taken.append((rank, kind, data))
        if kind == wire.OUT:
            self.connections.tell(wire.ALL_ENDED)

    def _run(self) -> None:
        while not self._ends:
            for key, _ in self._selector.select(0.02):
                key.data()

    def wait_for(self, *expected: tuple[int, bytes, bytes]) -> None:
        limit = time.monotonic() + stretched(5)
        while len(self.taken) < len(expected) and time.monotonic() < limit:
            time.sleep(0.01)
        assert self.taken == [*expected]

    def end(self) -> None:
        self._ends = True
        self._thread.join()
        self.connections.close()
        self._selector.close()


@pytest.fixture(params=[None, 0], ids=["unix", "tcp"])
def runner(request: pytest.FixtureRequest) -> Iterator[Runner]:
    begun = Runner(request.param)
    yield begun
    begun.end()


def connect(runner: Runner, rank: int, secret: str | None = None) -> link.Link:
    own = runner.connections.secret if secret is None else secret
    return link.connect(runner.connections.address, rank, own.encode(), stretched(5))


def test_frames_go_both_ways(runner):
    peer = connect(runner, 1)
    peer.send(wire.BEGAN, b"7 here")
    peer.send(wire.OUT, b"x")
    runner.wait_for((1, wire.BEGAN, b"7 here"), (1, wire.OUT, b"x"))
    kinds: list[bytes] = []
    limit = time.monotonic() + stretched(5)
    while not kinds and time.monotonic() < limit:
        kinds = peer.receive()
    assert kinds == [wire.ALL_ENDED]
    peer._connection.close()
    runner.wait_for(*runner.taken[:2], (1, b"", b""))


@pytest.mark.parametrize(
    ("rank", "secret"), [(0, "wrong"), (0, ""), (2, None), (2**32 - 1, None)], ids=repr
)
def test_who_cannot_prove_itself_is_refused(runner, rank, secret):
    with pytest.raises(OSError, match="closed before it was proven|reset"):
        connect(runner, rank, secret)
    connect(runner, 0)._connection.close()
    runner.wait_for((0, b"", b""))


def test_a_rank_has_one_connection(runner):
    first = connect(runner, 0)
    with pytest.raises(OSError, match="closed before it was proven|reset"):
        connect(runner, 0)
    first.send(wire.OUT, b"still")
    runner.wait_for((0, wire.OUT, b"still"))
    first._connection.close()


def test_strangers_do_no_harm(runner, monkeypatch):
    """They send too little, too much, nothing or frames without a proof; many at once."""
    monkeypatch.setattr(connections, "_SPARE", 3)
    strangers = []
    for data in (b"GET / HTTP/1.1\r\n\r\n", b"", os.urandom(500), wire.frame(wire.ENDED, b"1")) * 5:
        family, target = list(link._targets(runner.connections.address))[-1]
        strangers.append(socket.socket(family))
        strangers[-1].connect(target)
        strangers[-1].send(data)
    peer = connect(runner, 0)
    peer.send(wire.OUT, b"x")
    runner.wait_for((0, wire.OUT, b"x"))
    assert len(runner.connections._guests) <= 5
    for each in (*strangers, peer._connection):
        each.close()


def test_another_program_at_the_address_is_no_runner():
    """It answers with a nonce and a proof as long as the runner's."""
    server = socket.create_server(("127.0.0.1", 0))

    def answer() -> None:
        connection, _ = server.accept()
        connection.sendall(bytes(wire.NONCE_BYTES))
        connection.recv(wire.HELLO.size)
        connection.sendall(bytes(wire.PROOF_BYTES))
        connection.close()

    thread = threading.Thread(target=answer)
    thread.start()
    with pytest.raises(ConnectionRefusedError, match="another program answers there"):
        link.connect(f"{server.getsockname()[1]}/127.0.0.1", 0, b"secret", stretched(5))
    thread.join()
    server.close()


def test_a_silent_address_is_waited_for_within_the_limit(monkeypatch):
    monkeypatch.setattr(link, "ANSWER_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        begin = time.monotonic()
        with pytest.raises(TimeoutError):
            link.connect(f"{server.getsockname()[1]}/127.0.0.1", 0, b"secret", 1.0)
        assert time.monotonic() - begin < stretched(2)


def test_addresses_of_all_interfaces():
    server, address = connections._listen(0, 1)
    server.close()
    port, _, hosts = address.partition("/")
    assert int(port) > 0
    assert "127.0.0.1" in hosts.split(",")


def test_a_rank_can_be_made_to_wait(runner):
    peer = connect(runner, 0)
    runner.connections.pause({0})
    peer.send(wire.ERR, b"later")
    time.sleep(0.2)
    assert runner.taken == []
    runner.connections.pause(set())
    runner.wait_for((0, wire.ERR, b"later"))
    peer._connection.close()


def test_what_nobody_takes_is_bounded(runner):
    """A supervisor reads no more of its command's output then."""
    peer = connect(runner, 0)
    runner.connections.pause({0})
    sent = 0
    while not peer.full:
        peer.send(wire.ERR, bytes(wire.CHUNK))
        sent += 1
    assert sent < 500
    runner.connections.pause(set())
    limit = time.monotonic() + stretched(10)
    while peer.waits and time.monotonic() < limit:
        peer.flush()
    assert not peer.waits
    limit = time.monotonic() + stretched(5)
    while len(runner.taken) < sent and time.monotonic() < limit:
        time.sleep(0.01)
    assert len(runner.taken) == sent
    peer._connection.close()


def test_the_runner_s_end_is_seen(runner):
    peer = connect(runner, 0)
    runner.end()
    readable, _, _ = select.select([peer], [], [], stretched(5))
    assert readable
    with pytest.raises(link.Gone):
        peer.receive()
    peer._connection.close()
