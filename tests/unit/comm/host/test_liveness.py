"""A connection detects the end of a process on another machine, and nothing else."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from ncclkv.comm.host import liveness
from ncclkv.comm.host.liveness import Endpoint, Liveness
from tests.harness.slow import stretched

HERE = ("127.0.0.1",)

LISTENS = """
import os, sys
from ncclkv.comm.host.liveness import Liveness
listening = Liveness()
print(listening.endpoint.port, flush=True)
if sys.argv[1] == "forks" and os.fork() == 0:
    sys.stdin.read()
    os._exit(0)
if sys.argv[1] == "drops":
    sys.stdin.readline()
    listening._listening.accept()[0].close()
    print("dropped", flush=True)
sys.stdin.read()
"""


class Peer:
    """A process with a port, and a connection of this process to it."""

    def __init__(self, way: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", LISTENS, way],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.stdin, self.stdout = self.process.stdin, self.process.stdout
        self.endpoint = Endpoint(HERE, int(self.stdout.readline()))

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self.stdin.close()
        self.stdout.close()


@pytest.fixture
def peer(request: pytest.FixtureRequest) -> Iterator[Peer]:
    """Start another process; the parameter is its behaviour."""
    made = Peer(getattr(request, "param", "waits"))
    yield made
    made.end()


@pytest.fixture
def watching(peer: Peer) -> Iterator[Liveness]:
    """Connect this process to the other."""
    made = Liveness()
    made.watch([peer.endpoint])
    assert made.watches(peer.endpoint)
    yield made
    made.close()


def soon(what: Callable[[], bool]) -> bool:
    """Return whether a condition becomes true within a second."""
    limit = time.monotonic() + stretched(1.0)
    while not (found := what()) and time.monotonic() < limit:
        time.sleep(0.005)
    return found


def never(what: Callable[[], bool]) -> bool:
    """Return whether a condition stays false for some tenths of a second."""
    limit = time.monotonic() + 0.3
    while not (found := what()) and time.monotonic() < limit:
        time.sleep(0.005)
    return not found


def test_the_end_of_a_process_is_detected(peer: Peer, watching: Liveness) -> None:
    assert not watching.has_ended(peer.endpoint)
    peer.process.send_signal(signal.SIGKILL)
    assert soon(lambda: watching.has_ended(peer.endpoint))


def test_a_process_that_is_stopped_has_not_ended(peer: Peer, watching: Liveness) -> None:
    peer.process.send_signal(signal.SIGSTOP)
    assert never(lambda: watching.has_ended(peer.endpoint))


@pytest.mark.parametrize("peer", ["drops"], indirect=True)
def test_a_connection_that_something_cuts_is_made_again(peer: Peer, watching: Liveness) -> None:
    peer.stdin.write("\n")
    peer.stdin.flush()
    assert peer.stdout.readline() == "dropped\n"
    assert never(lambda: watching.has_ended(peer.endpoint))
    peer.process.send_signal(signal.SIGKILL)
    assert soon(lambda: watching.has_ended(peer.endpoint)), "the new connection is watched, too"


@pytest.mark.parametrize("peer", ["drops"], indirect=True)
def test_a_process_that_does_not_answer_is_tried_again(
    peer: Peer, watching: Liveness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check a link that is down: connections are neither refused nor accepted."""
    monkeypatch.setattr(liveness, "_AGAIN_SECONDS", 0.05, raising=False)
    with monkeypatch.context() as down:
        down.setattr(liveness, "_connect", lambda *arguments: ({}, set()))
        peer.stdin.write("\n")
        peer.stdin.flush()
        assert peer.stdout.readline() == "dropped\n"
        assert soon(lambda: not watching.ended() and not watching._connections)
    assert never(lambda: watching.has_ended(peer.endpoint)), "the link is back"
    assert watching._connections
    peer.process.send_signal(signal.SIGKILL)
    assert soon(lambda: watching.has_ended(peer.endpoint))


@pytest.mark.parametrize("peer", ["drops"], indirect=True)
def test_the_end_of_an_unreachable_process_is_detected_later(
    peer: Peer, watching: Liveness, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    monkeypatch.setattr(liveness, "_AGAIN_SECONDS", 0.05, raising=False)
    with monkeypatch.context() as down:
        down.setattr(liveness, "_connect", lambda *arguments: asked.append(1) or ({}, set()))
        peer.process.send_signal(signal.SIGKILL)
        begin = time.monotonic()
        assert never(lambda: watching.has_ended(peer.endpoint))
        assert len(asked) <= 1 + (time.monotonic() - begin) / 0.05, "not at every look"
    assert soon(lambda: watching.has_ended(peer.endpoint)), "the link is back"


def test_an_address_without_a_route_gives_no_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(socket.socket, "connect_ex", lambda *arguments: errno.ENETUNREACH)
    assert liveness._connect([("192.0.2.1", Endpoint(("192.0.2.1",), 9))], 0.1) == ({}, set())


def test_the_end_of_a_machine_is_detected_by_keepalive(watching: Liveness) -> None:
    ((connection, _),) = watching._connections.values()
    assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    options = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
    idle, pause, count = (connection.getsockopt(socket.IPPROTO_TCP, each) for each in options)
    assert idle + pause * count <= 15, "seconds"


@pytest.mark.parametrize("peer", ["forks"], indirect=True)
def test_a_forked_child_does_not_hide_its_parents_end(peer: Peer, watching: Liveness) -> None:
    peer.process.send_signal(signal.SIGKILL)
    assert soon(lambda: watching.has_ended(peer.endpoint))


def test_unreachable_processes_are_not_watched() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    nobody = Endpoint(HERE, port)
    made = Liveness()
    made.watch([nobody, Endpoint((), port)])
    assert not made.watches(nobody)
    assert not made.has_ended(nobody)
    made.close()


def test_the_first_address_that_answers_is_taken(peer: Peer) -> None:
    made = Liveness()
    # RFC 5737 reserves 192.0.2.0/24 for examples: no route leads there.
    both = Endpoint(("192.0.2.1", *HERE), peer.endpoint.port)
    begin = time.monotonic()
    made.watch([both])
    assert made.watches(both)
    assert time.monotonic() - begin < 0.4, "nobody waits for the other address"
    made.close()


def test_a_watch_opens_descriptors_once_and_closes_them(peer: Peer) -> None:
    before = len(os.listdir("/proc/self/fd"))
    made = Liveness()
    made.watch([peer.endpoint])
    held = len(os.listdir("/proc/self/fd"))
    made.watch([peer.endpoint])
    assert len(os.listdir("/proc/self/fd")) == held == before + 3
    made.close()
    assert len(os.listdir("/proc/self/fd")) == before
