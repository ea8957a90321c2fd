"""Wires between ranks of one thread, whose messages are arrays in memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ncclkv.comm.transport import Request, Steps
from ncclkv.comm.types import Buffer
from ncclkv.comm.wire import Limits, Parts, Places, Read, Wants, Wire
from ncclkv.kernels.host import HostKernels


@dataclass
class Network:
    """Messages on their way, by sender and receiver, and the bytes that each rank has sent."""

    size: int
    boxes: dict[tuple[int, int], deque[Buffer]] = field(default_factory=dict)
    sent: dict[int, int] = field(default_factory=dict)

    def box(self, source: int, target: int) -> deque[Buffer]:
        return self.boxes.setdefault((source, target), deque())


@dataclass
class Arrival(Request):
    """A message that is awaited."""

    box: deque[Buffer]
    into: Buffer
    complete: bool = False

    def done(self) -> bool:
        if not self.complete and self.box:
            self.into[...] = self.box.popleft()
            self.complete = True
        return self.complete


@dataclass
class Sent(Request):
    """A message that is copied when it is sent."""

    def done(self) -> bool:
        return True


class MemoryWire(Wire):
    """A wire between ranks of one thread."""

    def __init__(self, network: Network, rank: int, limits: Limits) -> None:
        super().__init__(rank, network.size, limits)
        self.network = network
        self.most_scratch = 0

    def scratch(self, nbytes: int) -> Buffer:
        self.most_scratch = max(self.most_scratch, nbytes)
        return np.full(nbytes, 0xA5, np.uint8)

    def send(self, data: Buffer, peer: int) -> Request:
        self.network.box(self.rank, peer).append(data.copy())
        self.network.sent[self.rank] = self.network.sent.get(self.rank, 0) + data.nbytes
        return Sent()

    def receive(self, into: Buffer, peer: int) -> Request:
        return Arrival(self.network.box(peer, self.rank), into)

    def fold(self, parts: Sequence[Buffer], total: Buffer, op: str) -> None:
        HostKernels().reduce(parts, total, op)


@dataclass
class Published(Request):
    """Wait until all ranks have published their arrays of a read."""

    arrays: dict[int, Buffer]
    size: int

    def done(self) -> bool:
        return len(self.arrays) == self.size


class MappedWire(MemoryWire):
    """A wire whose ranks read each other's arrays in place, as late as they like."""

    def __init__(self, network: Network, rank: int, reads: dict[int, dict[int, Buffer]]) -> None:
        super().__init__(network, rank, Limits(0, 1 << 30))
        self._arrays = reads
        self._reads = 0

    def read(self, own: Buffer, wants: Wants, into: Places = ()) -> Read:
        arrays = self._arrays.setdefault(self._reads, {})
        self._reads += 1
        arrays[self.rank] = own
        yield [Published(arrays, self.size)]
        parts = Parts(self, own, wants, into)
        for owner in self.peers:
            wanted = parts.wanted(owner)
            if wanted is not None:
                parts.take(owner, arrays[owner][slice(*wanted)])
        return parts.found


def run_mapped(steps: Sequence[Steps], rng: np.random.Generator) -> None:
    """Take steps of ranks in an order by chance, until none is left."""
    pending: dict[int, Sequence[Request] | None] = dict.fromkeys(range(len(steps)), ())
    while pending:
        rank = int(rng.choice([*pending]))
        found = pending[rank]
        if found is None:
            del pending[rank]
        elif all(request.done() for request in found):
            pending[rank] = next(steps[rank], None)


def run(wires: Sequence[MemoryWire], steps: Sequence[Steps]) -> None:
    """Take the steps of all ranks in turn, until none is left."""
    pending: list[Sequence[Request] | None] = [[] for _ in wires]
    for _ in range(10_000):
        if not any(each is not None for each in pending):
            assert not any(wires[0].network.boxes.values()), "a message that nobody received"
            return
        for rank, each in enumerate(pending):
            if each is not None and all(request.done() for request in each):
                pending[rank] = next(steps[rank], None)
    raise AssertionError(f"ranks wait for ever: {pending}")
