"""Framed messages: a digest that differs is found before any array is written."""

from __future__ import annotations

from collections import defaultdict, deque
from typing import Any

import numpy as np
import pytest

from ncclkv.comm.messages import framing
from ncclkv.comm.messages.framing import COPIED_BYTES
from ncclkv.comm.transport import Messages
from ncclkv.errors import OrderMismatch

TAG = 5
SIZES = [0, 1, 7, 8, COPIED_BYTES - 1, COPIED_BYTES, COPIED_BYTES + 1, 10 * COPIED_BYTES]
MARKS = [0, 1, -1, 2**63 - 1, -(2**63)]


class Sent:
    """A sent message, complete once it has been received."""

    def __init__(self, data: Any, peer: int) -> None:
        self.data, self.peer, self.taken = data, peer, False

    def done(self) -> bool:
        return self.taken

    def poll(self) -> bool:
        return True


class Awaited:
    """A message that its receiver takes at the first poll after its arrival."""

    def __init__(self, box: deque[Sent], into: Any, peer: int) -> None:
        self._box, self._into, self.peer = box, into, peer
        self._arrived = False

    def done(self) -> bool:
        if not self._arrived and self._box:
            sent = self._box.popleft()
            assert sent.data.size == self._into.size
            self._into[...] = sent.data
            sent.taken = self._arrived = True
        return self._arrived

    def poll(self) -> bool:
        return True


class Loop(Messages):
    """Messages of a rank to itself, which arrive when the test delivers them."""

    rank, size = 0, 2

    def __init__(self) -> None:
        self.boxes: defaultdict[int, deque[Sent]] = defaultdict(deque)
        self.lengths: list[int] = []

    def send(self, data: Any, peer: int, tag: int) -> Any:
        sent = Sent(data, peer)
        self.lengths.append(data.size)
        self.boxes[tag].append(sent)
        return sent

    def receive(self, into: Any, peer: int, tag: int) -> Any:
        return Awaited(self.boxes[tag], into, peer)


def bytes_of(size: int) -> Any:
    return (np.arange(size) % 251).astype(np.uint8)


def finish(message: Any) -> None:
    for _ in range(10):
        if message.done():
            return
    pytest.fail("the message never arrives")


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("mark", MARKS)
def test_data_arrive_with_an_equal_digest(size: int, mark: int) -> None:
    loop, into = Loop(), np.full(size, 7, np.uint8)
    sent = framing.send(loop, bytes_of(size), 1, TAG, mark)
    received = framing.Received(loop, into, 1, TAG, mark)
    assert received.peer == sent.peer == 1
    finish(received)
    finish(sent)
    assert (into == bytes_of(size)).all()
    assert not loop.boxes[TAG], "nothing is left for the next message"


@pytest.mark.parametrize("size", SIZES)
def test_nothing_is_written_with_another_digest(size: int) -> None:
    loop, into = Loop(), np.full(size, 7, np.uint8)
    framing.send(loop, bytes_of(size), 1, TAG, 4)
    received = framing.Received(loop, into, 1, TAG, 5)
    with pytest.raises(OrderMismatch, match="rank 1 made this call after other calls"):
        finish(received)
    assert (into == 7).all()


@pytest.mark.parametrize(("size", "lengths"), [(0, 1), (COPIED_BYTES, 1), (COPIED_BYTES + 1, 2)])
def test_short_data_and_digest_are_one_message(size: int, lengths: int) -> None:
    loop = Loop()
    framing.send(loop, bytes_of(size), 1, TAG, 0)
    assert len(loop.lengths) == lengths
    assert sum(loop.lengths) == size + 8


def test_long_data_are_not_copied() -> None:
    loop, data = Loop(), bytes_of(COPIED_BYTES + 1)
    framing.send(loop, data, 1, TAG, 0)
    assert any(sent.data is data for sent in loop.boxes[TAG])


def test_short_data_may_change_after_the_send() -> None:
    loop, data, into = Loop(), bytes_of(10), np.zeros(10, np.uint8)
    framing.send(loop, data, 1, TAG, 0)
    data[:] = 99
    finish(framing.Received(loop, into, 1, TAG, 0))
    assert (into == bytes_of(10)).all()


@pytest.mark.parametrize("size", [3, COPIED_BYTES + 1])
def test_a_message_that_has_not_arrived_is_not_complete(size: int) -> None:
    loop, into = Loop(), np.zeros(size, np.uint8)
    received = framing.Received(loop, into, 1, TAG, 9)
    assert not received.done()
    sent = framing.send(loop, bytes_of(size), 1, TAG, 9)
    assert not sent.done()
    finish(received)
    finish(sent)


def test_consecutive_messages_arrive_in_order() -> None:
    loop = Loop()
    for number, size in enumerate(SIZES):
        into = np.zeros(size, np.uint8)
        sent = framing.send(loop, bytes_of(size), 1, TAG, number)
        finish(framing.Received(loop, into, 1, TAG, number))
        finish(sent)
        assert (into == bytes_of(size)).all()
