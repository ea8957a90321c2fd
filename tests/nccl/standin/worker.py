"""The stand-in's objects of one rank."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

from ncclkv.comm.base import Communicator
from ncclkv.comm.host import threads
from ncclkv.comm.nccl.communicator import NcclCommunicator
from ncclkv.comm.nccl.watcher import Watcher
from ncclkv.testing import Seeded, run_ranks
from tests.harness.one_core import one_core
from tests.harness.slow import stretched
from tests.nccl.standin.binding import RecordingBinding
from tests.nccl.standin.device import DEFAULT_STREAM, Device
from tests.nccl.standin.drawn import DrawnDevice, DrawnWatcher
from tests.nccl.standin.faults import Faults
from tests.nccl.standin.kernels import StandInKernels
from tests.nccl.standin.log import HEADER
from tests.nccl.standin.peers import Peers
from tests.nccl.standin.streams import RecordingStreams

LIMIT = stretched(20.0)

_SHORT_INTERVAL = 1.0
"""Seconds between two looks of a watcher that ends waits in time."""

_WORLD_LIMIT = 1e6
"""Seconds of a seeded world, whose ranks may lose any time."""


class Worker:
    """A rank's device, binding and streams, over a host communicator.

    Parameters
    ----------
    host : Communicator
        Host communicator; its creator closes it.
    lazy : bool
        Whether the device delays all work as long as possible.
    faults : Faults
        Faults of this rank.
    limit : float
        Seconds after which a wait of the stand-in counts as a hang.
    drawn : bool
        Whether the streams, and a watcher, are threads of a seeded world.

    Attributes
    ----------
    watcher : Watcher or None
        As a process has it for its communicators; None outside a seeded world.
    broken_on_purpose : bool
        Whether the test broke the contract on purpose, so that leftover state is not checked.
    has_left : bool
        Whether the rank's process has ended, which waits for no other rank.
    """

    def __init__(
        self,
        host: Communicator,
        lazy: bool = False,
        faults: Faults = Faults(),  # noqa: B008 - it does not change
        limit: float = LIMIT,
        drawn: bool = False,
    ) -> None:
        self.rank, self.size = host.rank, host.size
        self.device = DrawnDevice(host.rank) if drawn else Device(host.rank, lazy, limit)
        longest = _SHORT_INTERVAL if faults.hangs else math.inf
        self.watcher: Watcher | None = DrawnWatcher(longest) if drawn else None
        self.streams = RecordingStreams(self.device)
        self.binding = RecordingBinding(self.device, faults)
        self.kernels = StandInKernels(self.streams)
        self.binding.offer_later(host, limit)
        self.peers: Any = Peers(host, self.binding, limit, self.device.log)
        self.log = self.device.log
        self.broken_on_purpose = self.has_left = False

    def __repr__(self) -> str:
        return f"<{HEADER}, rank {self.rank} of {self.size}>"

    def communicator(self, timeout: float | None = None) -> NcclCommunicator:
        """Return the communicator under test, of all ranks."""
        peers = self.peers.duplicate(timeout)
        return NcclCommunicator(
            peers, self.binding, self.streams, self.kernels, watcher=self.watcher
        )

    def create(self) -> Any:
        """Return a handle of all ranks, created as the communicator under test creates one."""
        identity = self.binding.unique_id() if self.rank == 0 else b""
        identity = self.peers.control.broadcast(identity, 0, "the unique id")
        return self.binding.create(self.size, identity, self.rank)

    @contextmanager
    def calls(self) -> Iterator[list[str]]:
        """Yield the calls of a block, one a line, while the device is frozen."""
        self.device.frozen = True
        try:
            with self.device.log.section() as lines:
                yield lines
        finally:
            self.device.frozen = False

    def check(self) -> None:
        """Raise faults that no call reported, such as a write beside an array."""
        self.device.memory.check_guards()
        self.device.check()
        assert self.device.current == DEFAULT_STREAM, "a verb has changed the current stream"

    def close(self) -> None:
        """End the threads of the device and of the watcher."""
        if self.watcher is not None:
            self.watcher.stop()
        self.device.close()


def run_on_standin(
    size: int,
    body: Callable[[Worker], Any],
    *,
    lazy: bool = False,
    faults: dict[int, Faults] | None = None,
    limit: float = LIMIT,
    timeout: float = 20.0,
    world: Seeded | None = None,
) -> list[Any]:
    """Run ``body(worker)`` on so many threads, and check each device at the end.

    In a seeded world the streams run at turns that the world draws, and `limit` has no effect.
    """

    def rank_body() -> Any:
        with worker_of_thread(lazy, faults or {}, limit, drawn=world is not None) as worker:
            return body(worker)

    if world is not None:
        return run_ranks(size, rank_body, timeout=timeout, world=world)
    with one_core():
        return run_ranks(size, rank_body, timeout=timeout)


@contextmanager
def worker_of_thread(
    lazy: bool = False,
    faults: Mapping[int, Faults] = MappingProxyType({}),
    limit: float = LIMIT,
    *,
    drawn: bool,
) -> Iterator[Worker]:
    """Yield the worker of this thread, which is a rank; check its device at the end."""
    # Not `threads.world`: a duplicate takes milliseconds of each rank.
    host: Any = threads._current.communicator
    limit = _WORLD_LIMIT if drawn else limit
    worker = Worker(host, lazy, faults.get(host.rank, Faults()), limit, drawn)
    try:
        yield worker
        if not worker.broken_on_purpose:
            worker.check()
    finally:
        worker.close()
    if not worker.has_left:
        host.close()
