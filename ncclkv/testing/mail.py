"""Messages, notices and farewells of a world: each arrives at a drawn time, in its pair's order."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ncclkv import concurrency
from ncclkv.comm.host.threads import Incoming, Outgoing, ThreadGroup, ThreadTransport
from ncclkv.comm.transport import Request
from ncclkv.comm.types import Buffer
from ncclkv.testing.world_threads import acting, active


class SeededGroup(ThreadGroup):
    """Mailboxes whose messages arrive late.

    Attributes
    ----------
    notices : dict of list
        Notices on their way to each rank: the time of arrival, the sender, and the bytes.
    """

    def __init__(self) -> None:
        super().__init__()
        self.notices: defaultdict[int, list[tuple[int, int, bytes]]] = defaultdict(list)


@dataclass
class _SeededIncoming(Incoming):
    """A message that its receiver finds once it has arrived."""

    def done(self) -> bool:
        if acting() is None or self.received:
            return super().done()
        concurrency.point("look for a message")
        turns = active().turns
        box = self.group.messages.get(self.address)
        if not box or box[0].arrives > turns.now or not super().done():
            return False
        turns.changed()
        return True


class SeededTransport(ThreadTransport):
    """A thread's end of a `SeededGroup`."""

    group_type = SeededGroup
    _group: SeededGroup

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._farewells: dict[int, int] = {}

    def send(self, data: Buffer, peer: int, tag: int) -> Outgoing:
        _give_turn("send a message")
        message = super().send(data, peer, tag)
        message.arrives = self._arrival(self.rank, peer)
        return message

    def receive(self, into: Buffer, peer: int, tag: int) -> Request:
        return _SeededIncoming(self._group, (peer, self.rank, tag), into, peer)

    def post(self, data: bytes, peers: Iterable[int]) -> None:
        for peer in peers:
            _give_turn("send a notice")
            at = self._arrival(self.rank, peer)
            self._group.notices[peer].append((at, self.rank, data))

    def left_ranks(self) -> dict[int, str]:
        concurrency.point("look for notices")
        now, notices = active().turns.now, self._group.notices
        self.inbox += [(sender, data) for at, sender, data in notices[self.rank] if at <= now]
        notices[self.rank] = [each for each in notices[self.rank] if each[0] > now]
        return super().left_ranks()

    def _departed(self) -> dict[int, str]:
        for rank in self._group.departed.keys() - self._farewells.keys():
            self._farewells[rank] = self._arrival(rank, self.rank)
        now = active().turns.now
        departed = super()._departed().items()
        return {rank: reason for rank, reason in departed if self._farewells[rank] <= now}

    def _arrival(self, sender: int, receiver: int) -> int:
        """Draw when a message that is sent now arrives; 0 outside a turn."""
        if acting() is None:
            return 0
        return active().turns.arrival(self._first_rank(sender), self._first_rank(receiver))

    def _first_rank(self, rank: int) -> int:
        """Return a rank's index among all ranks of the world."""
        parent = self._parent
        if not isinstance(parent, SeededTransport):
            return rank
        return parent._first_rank(self._parent_ranks[rank])

    def leave(self, reason: str) -> None:
        _give_turn("leave")
        super().leave(reason)


def _give_turn(label: str) -> None:
    """Give a turn before a step that other ranks see."""
    concurrency.point(label)
    active().turns.changed()
