"""Frames of the runner and its supervisors, and the proofs that they require."""

from __future__ import annotations

import errno
import os
import resource
import select
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from queue import SimpleQueue

import pytest

from ncclkv.cli import connections, link, protocol
from ncclkv.cli.connections import Connections
from tests.harness.slow import stretched


def test_frames_from_pieces():
    stream = (
        protocol.frame(protocol.OUT, b"abc")
        + protocol.frame(protocol.STOPPED)
        + protocol.frame(protocol.ERR, b"\n\0")
    )
    received, found = bytearray(), []
    for at in range(len(stream)):
        received += stream[at : at + 1]
        found += protocol.take_frames(received)
    assert not received
    assert found == [(protocol.OUT, b"abc"), (protocol.STOPPED, b""), (protocol.ERR, b"\n\0")]


def test_a_frame_that_is_too_long():
    with pytest.raises(OSError, match="a frame of 65537 bytes, and 65536 are allowed"):
        list(
            protocol.take_frames(bytearray(protocol.frame(protocol.OUT, bytes(protocol.CHUNK + 1))))
        )


class Runner:
    """The runner's side, in its own thread; `links` are the ranks' ends, closed with it."""

    def __init__(self, port: int | None) -> None:
        self.taken: list[tuple[int, bytes, bytes]] = []
        self.links: list[link.Link] = []
        self._calls: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._selector = selectors.DefaultSelector()
        self.connections = Connections(2, port, self._selector, self._take)
        self._ends = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _take(self, rank: int, kind: bytes, data: bytes) -> None:
        self.taken.append((rank, kind, data))
        if kind == protocol.OUT:
            self.connections.send(protocol.ALL_ENDED)

    def _run(self) -> None:
        while not self._ends:
            for key, _ in self._selector.select(0.02):
                key.data()
            while not self._calls.empty():
                self._calls.get()()

    def call(self, function: Callable[[], None]) -> None:
        """Call a function in the thread of the runner, between two events, as `ncclkv run` does."""
        done = threading.Event()
        self._calls.put(function)
        self._calls.put(done.set)
        assert done.wait(stretched(5)), "the runner's thread has ended"

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
    for each in begun.links:
        each._connection.close()


def connect(runner: Runner, rank: int, secret: str | None = None) -> link.Link:
    own = runner.connections.secret if secret is None else secret
    address = runner.connections.address
    runner.links.append(link.connect(address, rank, own.encode(), stretched(5)))
    return runner.links[-1]


def unproven(made: Connections) -> int:
    """Return the number of connections that have sent no proof."""
    return sum(peer.rank is None for peer in made._peers)


def test_frames_go_both_ways(runner):
    peer = connect(runner, 1)
    peer.send(protocol.BEGAN, b"7 here")
    peer.send(protocol.OUT, b"x")
    runner.wait_for((1, protocol.BEGAN, b"7 here"), (1, protocol.OUT, b"x"))
    kinds: list[tuple[bytes, bytes]] = []
    limit = time.monotonic() + stretched(5)
    while not kinds and time.monotonic() < limit:
        kinds = peer.receive()
    assert kinds == [(protocol.ALL_ENDED, b"")]
    peer._connection.close()
    runner.wait_for(*runner.taken[:2], (1, b"", b""))


def test_a_rank_that_connects_later_gets_the_first_frames_too(runner):
    connect(runner, 0)
    send = partial(runner.connections.send, protocol.MASTER, b"node1 29500", also_later=True)
    runner.call(send)
    for peer in (*runner.links, connect(runner, 1)):
        found: list[tuple[bytes, bytes]] = []
        limit = time.monotonic() + stretched(5)
        while not found and time.monotonic() < limit:
            found = peer.receive()
        assert found == [(protocol.MASTER, b"node1 29500")]


@pytest.mark.parametrize(
    ("rank", "secret"), [(0, "wrong"), (0, ""), (2, None), (2**32 - 1, None)], ids=repr
)
def test_a_peer_without_a_proof_is_refused(runner, rank, secret):
    with pytest.raises(OSError, match="closed before it was proven|reset"):
        connect(runner, rank, secret)
    connect(runner, 0)._connection.close()
    runner.wait_for((0, b"", b""))


def test_a_rank_has_one_connection(runner):
    first = connect(runner, 0)
    with pytest.raises(OSError, match="closed before it was proven|reset"):
        connect(runner, 0)
    first.send(protocol.OUT, b"still")
    runner.wait_for((0, protocol.OUT, b"still"))


def test_peers_without_proofs_do_not_disturb_ranks(runner, monkeypatch):
    """Check peers that send too little, too much, nothing or no proof; many at once."""
    monkeypatch.setattr(connections, "_SPARE", 3)
    strangers = []
    short = protocol.frame(protocol.HELLO, b"1")
    ended = protocol.frame(protocol.ENDED, bytes(protocol.HELLO_FORM.size))
    for data in (b"GET / HTTP/1.1\r\n\r\n", b"", os.urandom(500), short, ended) * 5:
        family, target = list(link._targets(runner.connections.address))[-1]
        strangers.append(socket.socket(family))
        strangers[-1].connect(target)
        strangers[-1].send(data)
    peer = connect(runner, 0)
    peer.send(protocol.OUT, b"x")
    runner.wait_for((0, protocol.OUT, b"x"))
    addresses = len(list(link._targets(runner.connections.address)))
    assert unproven(runner.connections) <= 2 * addresses + 3
    for each in strangers:
        each.close()


@pytest.fixture
def alone() -> Iterator[tuple[Connections, selectors.BaseSelector]]:
    """Yield connections of one rank; the test itself reads their events."""
    selector = selectors.DefaultSelector()
    made = Connections(1, None, selector, lambda rank, kind, data: None)
    yield made, selector
    made.close()
    selector.close()


def knock(made: Connections) -> socket.socket:
    """Connect without a proof."""
    stranger = socket.socket(socket.AF_UNIX)
    stranger.connect("\0" + made.address[1:])
    return stranger


def test_a_proof_past_the_deadline_is_refused(alone, monkeypatch):
    made, selector = alone
    old = knock(made)
    made._accept()
    old.send(b"late")
    new = knock(made)
    monkeypatch.setattr(connections, "_HELLO_SECONDS", -1.0)
    ready = [key for key, _ in selector.select(stretched(5))]
    assert len(ready) == 2, "both come with one look"
    for key in sorted(ready, key=lambda each: each.data != made._accept):
        key.data()
    assert unproven(made) == 1
    assert old.recv(1 << 10)[protocol.NONCE_BYTES :] == b""
    old.close()
    new.close()


def test_no_descriptor_is_left_for_a_connection(alone, monkeypatch):
    made, _ = alone
    server = made._server

    class Full:
        def accept(self) -> None:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

        def close(self) -> None:
            server.close()

    monkeypatch.setattr(made, "_server", Full())
    made._accept()
    assert not unproven(made)


def test_a_large_job_may_open_as_many_files_as_it_has_ranks():
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
        for ranks, enough in ((4, 256), (1000, 1000)):
            with selectors.DefaultSelector() as selector:
                Connections(ranks, None, selector, lambda rank, kind, data: None).close()
            found = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
            assert found >= enough
            assert (found == 256) == (ranks == 4), "programs inherit the limit: no more than needed"
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_ranks_that_try_all_addresses_at_once_are_accepted(monkeypatch):
    """Check a rank that connects to each address, and sends its proof on one connection."""
    ranks, addresses = 16, 4
    monkeypatch.setattr(connections, "_SPARE", 0)
    monkeypatch.setattr(connections, "addresses", lambda: ["127.0.0.1"])
    monkeypatch.setattr(connections, "_addresses_6", lambda: ["::1"] * (addresses - 2))
    selector = selectors.DefaultSelector()
    taken: list[int] = []
    made = Connections(ranks, 0, selector, lambda rank, kind, data: taken.append(rank))
    assert len(list(link._targets(made.address))) == addresses
    port = int(made.address.partition("/")[0])
    target, wait = ("127.0.0.1", port), stretched(5)
    guests = [socket.create_connection(target, wait) for _ in range(ranks * addresses)]
    for _ in guests:
        made._accept()
    assert unproven(made) == ranks * addresses
    made.close()
    selector.close()
    for each in guests:
        each.close()


def test_a_machine_without_a_family_of_addresses(monkeypatch):
    """Check that an attempt at one address continues when the other family is missing."""

    class WithoutSix(socket.socket):
        def __init__(self, family: int = -1, *more: int, **named: int) -> None:
            if family == socket.AF_INET6:
                raise OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT))
            super().__init__(family, *more, **named)

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        monkeypatch.setattr(socket, "socket", WithoutSix)
        first, second = link._attempts(f"{port}/127.0.0.1,::1", time.monotonic() + stretched(5))
        assert isinstance(first, OSError)
        assert isinstance(second, socket.socket)
        second.close()


def test_a_wrong_proof_of_the_runner_is_refused():
    """Check a program that answers with a nonce and a proof of the right length."""
    server = socket.create_server(("127.0.0.1", 0))

    def answer() -> None:
        connection, _ = server.accept()
        connection.sendall(bytes(protocol.NONCE_BYTES))
        connection.recv(len(protocol.frame(protocol.HELLO)) + protocol.HELLO_FORM.size)
        connection.sendall(bytes(protocol.PROOF_BYTES))
        connection.close()

    thread = threading.Thread(target=answer)
    thread.start()
    with pytest.raises(ConnectionRefusedError, match="another program answers there"):
        link.connect(f"{server.getsockname()[1]}/127.0.0.1", 0, b"secret", stretched(5))
    thread.join()
    server.close()


def test_the_wait_for_a_silent_address_is_limited(monkeypatch):
    monkeypatch.setattr(link, "ANSWER_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        begin = time.monotonic()
        with pytest.raises(TimeoutError):
            link.connect(f"{server.getsockname()[1]}/127.0.0.1", 0, b"secret", 1.0)
        assert time.monotonic() - begin < stretched(2)


def test_addresses_of_all_interfaces():
    server, address, count = connections._listen(0, 1)
    server.close()
    assert address.count(",") == count - 1
    port, _, hosts = address.partition("/")
    assert int(port) > 0
    assert "127.0.0.1" in hosts.split(",")


def test_an_error_while_printing_does_not_close_the_connection():
    ours, theirs = socket.socketpair()

    def take(rank: int, kind: bytes, data: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    selector = selectors.DefaultSelector()
    made = Connections(1, None, selector, take)
    peer = connections._Peer(ours, time.monotonic(), rank=0)
    made._peers.append(peer)
    made._read_from(peer)
    theirs.send(protocol.frame(protocol.OUT, b"x"))
    with pytest.raises(OSError, match="No space left"):
        made._read(peer)
    assert made.open
    made.close()
    selector.close()
    theirs.close()


def test_a_rank_can_be_made_to_wait(runner):
    peer = connect(runner, 0)
    runner.call(partial(runner.connections.pause, {0}))
    peer.send(protocol.ERR, b"later")
    time.sleep(0.2)
    assert runner.taken == []
    runner.call(partial(runner.connections.pause, set()))
    runner.wait_for((0, protocol.ERR, b"later"))


def test_unread_output_is_bounded(runner):
    """Check that a supervisor stops reading its command's output when it cannot send it."""
    peer = connect(runner, 0)
    runner.call(partial(runner.connections.pause, {0}))
    sent = 0
    while len(peer.unsent) <= link.FULL_BYTES:
        peer.send(protocol.ERR, bytes(protocol.CHUNK))
        sent += 1
    assert sent < 500
    runner.call(partial(runner.connections.pause, set()))
    limit = time.monotonic() + stretched(10)
    while peer.unsent and time.monotonic() < limit:
        peer.flush()
    assert not peer.unsent
    limit = time.monotonic() + stretched(5)
    while len(runner.taken) < sent and time.monotonic() < limit:
        time.sleep(0.01)
    assert len(runner.taken) == sent


def test_the_end_of_the_runner_is_detected(runner):
    peer = connect(runner, 0)
    runner.end()
    readable, _, _ = select.select([peer], [], [], stretched(5))
    assert readable
    with pytest.raises(link.RunnerEnded):
        peer.receive()
    peer._connection.close()
