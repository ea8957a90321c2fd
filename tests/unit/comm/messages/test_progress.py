"""The loop of all host waits, over messages that arrive when the test delivers them."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterable, Sequence

import pytest

from ncclkv.comm.messages import progress
from ncclkv.comm.messages.progress import ProgressEngine, StepWork
from ncclkv.comm.transport import Request, Steps, Transport
from ncclkv.comm.types import Buffer
from ncclkv.errors import (
    CommTimeout,
    ContractError,
    Divergence,
    OrderMismatch,
    RankLost,
    SpecMismatch,
)


class Message(Request):
    """A message that is complete after a number of polls."""

    def __init__(self, peer: int, looks: float = float("inf")) -> None:
        self.peer = peer
        self.looks = looks

    def done(self) -> bool:
        self.looks -= 1
        return self.looks < 0


class Still(Transport):
    """A transport of four ranks in which no message moves by itself."""

    rank, size, node, name = 0, 4, range(4), "still"

    def __init__(self) -> None:
        self.gone: dict[int, str] = {}
        self.pauses: list[int] = []
        self.inbox = []
        self.told: list[int] = []

    def pause(self, attempt: int) -> None:
        self.pauses.append(attempt)
        time.sleep(1e-4)

    def notify(self) -> None:
        raise NotImplementedError

    def left_ranks(self) -> dict[int, str]:
        return self.gone

    def send(self, data: Buffer, peer: int, tag: int) -> Request:
        raise NotImplementedError

    def receive(self, into: Buffer, peer: int, tag: int) -> Request:
        raise NotImplementedError

    def post(self, data: bytes, peers: Iterable[int]) -> None:
        self.told.extend(peers)

    def leave(self, reason: str) -> None:
        raise NotImplementedError

    def split(self, color: int, key: int) -> Transport:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError


def steps(*messages: Sequence[Message], log: list[int] | None = None) -> Steps:
    """Return a collective of as many steps; `log` records the steps made."""
    for number, needed in enumerate(messages):
        if log is not None:
            log.append(number)
        yield needed


def launched(engine: ProgressEngine, *messages: Sequence[Message]) -> StepWork:
    return engine.launch(StepWork(steps(*messages), "a sum"))


def test_a_collective_without_messages_is_complete_at_launch() -> None:
    transport = Still()
    progress = launched(ProgressEngine(transport, 5.0), [], [])
    progress.wait()
    assert progress.done()
    assert transport.pauses == []


def test_launch_makes_the_first_step_alone() -> None:
    log: list[int] = []
    engine = ProgressEngine(Still(), 5.0)
    engine.launch(StepWork(steps([Message(1)], [Message(2)], log=log), "a sum"))
    assert log == [0]


def test_a_wait_ends_with_the_last_message() -> None:
    transport = Still()
    progress = launched(
        ProgressEngine(transport, 5.0), [Message(1, 3), Message(2, 8)], [Message(3, 4)]
    )
    progress.wait()
    assert progress.done()
    # The second step's messages may have arrived meanwhile: its polls begin without sleeps again.
    second = transport.pauses.index(1, 1)
    assert transport.pauses == [
        *range(1, second + 1),
        *range(1, len(transport.pauses) + 1 - second),
    ]
    assert second >= 7
    assert len(transport.pauses) >= 10


def test_the_deadline_holds_while_steps_go_on() -> None:
    endless = [[Message(1, 2)] for _ in range(5000)]
    with pytest.raises(CommTimeout, match="rank 1"):
        launched(ProgressEngine(Still(), 0.05), *endless).wait()


def test_waiting_for_one_advances_the_others() -> None:
    engine = ProgressEngine(Still(), 5.0)
    other = launched(engine, [Message(1, 2)], [Message(2, 2)])
    launched(engine, [Message(3, 30)]).wait()
    looks_left = other.missing()
    assert looks_left == set()


@pytest.mark.parametrize(
    ("peers", "names"), [([2], "rank 2"), ([3, 1], "ranks 1, 3"), ([1, 2, 1], "ranks 1, 2")]
)
def test_the_deadline_names_the_missing_ranks(peers: list[int], names: str) -> None:
    progress = launched(
        ProgressEngine(Still(), 0.05), [Message(0, 0), *(Message(peer) for peer in peers)]
    )
    progress.label = "key 'w'"
    begin = time.monotonic()
    with pytest.raises(CommTimeout) as caught:
        progress.wait()
    assert 0.05 < time.monotonic() - begin < 1
    assert re.fullmatch(
        r"rank 0 of 4: a sum \(key 'w'\) waited 0\.\d s \(timeout 0\.05 s\) for " + names + "; all "
        "ranks must make the same calls in the same order: look at what " + names + " did instead",
        str(caught.value),
    )


def test_a_wait_may_be_shorter_or_longer_than_the_default() -> None:
    with pytest.raises(CommTimeout, match=r"timeout 0\.03 s"):
        launched(ProgressEngine(Still(), 60.0), [Message(1)]).wait(timeout=0.03)
    launched(ProgressEngine(Still(), 1e-3), [Message(1, 200)]).wait(timeout=60.0)


def test_a_message_that_came_while_the_process_was_stopped_is_no_timeout() -> None:
    class Stopped(Still):
        """A transport whose process is stopped in a pause, until its message has arrived."""

        def pause(self, attempt: int) -> None:
            super().pause(attempt)
            if attempt == 30:
                time.sleep(0.2)
                message.looks = 0

    message = Message(1)
    work = launched(ProgressEngine(Stopped(), 0.1), [message])
    work.wait()
    assert work.finished


@pytest.mark.parametrize("error", [OrderMismatch, SpecMismatch, Divergence])
def test_a_rank_that_left_over_a_disagreement_passes_it_on(error: type[ContractError]) -> None:
    transport = Still()
    work = launched(ProgressEngine(transport, 60.0), [Message(1)])
    transport.gone[1] = f"{error.__name__}: rank 1 of 4: the ranks disagree"
    with pytest.raises(error) as caught:
        work.wait()
    assert str(caught.value) == (
        f"rank 0 of 4: rank 1 left with {error.__name__}: rank 1 of 4: the ranks disagree"
    )


def test_a_departure_ends_the_wait_for_that_rank() -> None:
    transport = Still()
    transport.gone = {3: "ValueError: boom"}
    progress = launched(ProgressEngine(transport, 60.0), [Message(1), Message(3)])
    text = "rank 0 of 4: rank 3 left while a sum waited for it; farewell: ValueError: boom"
    with pytest.raises(RankLost) as caught:
        progress.wait()
    assert str(caught.value) == text


def test_a_departure_of_another_rank_does_not() -> None:
    transport = Still()
    transport.gone = {3: "done early"}
    launched(ProgressEngine(transport, 60.0), [Message(1, 100)]).wait()


def test_messages_before_a_departure_count() -> None:
    class Late(Still):
        """A transport on which a rank's last message arrives with its farewell."""

        def left_ranks(self) -> dict[int, str]:
            message.looks = 0
            return {3: "bye"}

    message = Message(3)
    launched(ProgressEngine(Late(), 60.0), [message]).wait()


@pytest.mark.parametrize("again", ["launch", "wait"])
def test_a_failure_is_raised_again_at_once(again: str) -> None:
    engine = ProgressEngine(Still(), 0.03)
    before = launched(engine, [Message(1)])
    with pytest.raises(CommTimeout) as first:
        launched(engine, [Message(2)]).wait()
    begin = time.monotonic()
    with pytest.raises(CommTimeout) as second:
        launched(engine, [Message(3)]) if again == "launch" else before.wait(timeout=5.0)
    assert str(second.value) == str(first.value)
    assert time.monotonic() - begin < 1


def test_a_chain_of_waits_ends_at_a_rank_that_left() -> None:
    transport = Still()
    engine = ProgressEngine(transport, 5.0)
    engine.multi_node = True
    transport.gone = {2: "ValueError: no"}
    begin = time.monotonic()
    with pytest.raises(RankLost, match=r"rank 2 left while a sum waited.*ValueError: no"):
        launched(engine, [Message(1)]).wait()
    assert time.monotonic() - begin < 2


def test_a_lent_engine_stays_with_its_thread_until_the_last_block_ends() -> None:
    engine, own = ProgressEngine(Still(), 5.0), threading.get_ident()

    def is_here_after_a_launch_elsewhere() -> bool:
        thread = threading.Thread(target=launched, args=(engine, [Message(1)]))
        thread.start()
        thread.join()
        return engine in progress.open_progress_engines(own)

    outer, inner = engine.lend(), engine.lend()
    outer.__enter__(), inner.__enter__()
    assert is_here_after_a_launch_elsewhere()
    outer.__exit__(None, None, None)
    assert is_here_after_a_launch_elsewhere()
    inner.__exit__(None, None, None)
    assert not is_here_after_a_launch_elsewhere()


def test_an_engine_stays_with_its_thread_when_a_deputy_lends_it() -> None:
    engine, own = ProgressEngine(Still(), 5.0), threading.get_ident()

    def deputy() -> None:
        with engine.lend():
            launched(engine, [Message(1)])

    thread = threading.Thread(target=deputy)
    thread.start()
    thread.join()
    assert engine in progress.open_progress_engines(own)


def test_engines_are_advanced_in_the_order_of_their_launches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Launched in another order than that of their creation, and hence of their addresses.
    monkeypatch.setattr(progress, "_in_flight", {})
    made = [ProgressEngine(Still(), 5.0) for _ in range(100)]
    engines = [made[number * 37 % 100] for number in range(100)]
    del made
    for engine in engines:
        launched(engine, [Message(1)])
    assert engines[0]._others() == engines[1:]
    known = [each for each in progress.progress_engines() if each in engines]
    assert known == [engines[number * 73 % 100] for number in range(100)]


def test_polls_go_on_after_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    # Collectives left by other tests would be polled, too.
    monkeypatch.setattr(progress, "_in_flight", {})

    class Late(Message):
        def poll(self) -> bool:
            return len(transport.pauses) >= 10

    transport = Still()
    message = Late(1, looks=1)
    launched(ProgressEngine(transport, 5.0), [message]).wait()
    assert len(transport.pauses) == 10
