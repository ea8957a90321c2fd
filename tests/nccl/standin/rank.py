"""All that the stand-in gives one rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ncclkv.comm.base import Communicator
from ncclkv.comm.host import threads
from ncclkv.comm.nccl.communicator import NcclCommunicator
from ncclkv.testing import run_ranks
from tests.harness.slow import stretched
from tests.nccl.standin.binding import RecordingBinding
from tests.nccl.standin.device import Device
from tests.nccl.standin.faults import Faults
from tests.nccl.standin.kernels import StandInKernels
from tests.nccl.standin.log import HEADER
from tests.nccl.standin.peers import Peers
from tests.nccl.standin.streams import RecordingStreams

LIMIT = stretched(20.0)


class Seat:
    """A rank's device, binding and streams, over a host communicator.

    Parameters
    ----------
    host : Communicator
        Closed by whoever made it.
    lazy : bool
        Whether the device does nothing before it must.
    faults : Faults
        What goes wrong on this rank.
    limit : float
        Seconds that the stand-in waits for anything before it calls it a hang.

    Attributes
    ----------
    spoilt : bool
        Whether the contract was broken on purpose, so that what is left behind says nothing.
    """

    def __init__(
        self,
        host: Communicator,
        lazy: bool = False,
        faults: Faults = Faults(),  # noqa: B008 - it does not change
        limit: float = LIMIT,
    ) -> None:
        self.rank, self.size = host.rank, host.size
        self.device = Device(host.rank, lazy, limit)
        self.streams = RecordingStreams(self.device)
        self.binding = RecordingBinding(self.device, faults)
        self.kernels = StandInKernels(self.streams)
        self.binding.offer(host.duplicate(limit))
        self.peers: Any = Peers(host, self.binding.offer, limit, self.device.log)
        self.log = self.device.log
        self.spoilt = False

    def __repr__(self) -> str:
        return f"<{HEADER}, rank {self.rank} of {self.size}>"

    def communicator(self, timeout: float | None = None) -> NcclCommunicator:
        """The communicator under test, of all ranks, over this seat."""
        peers = self.peers.duplicate(timeout)
        return NcclCommunicator(peers, self.binding, self.streams, self.kernels)

    def create(self) -> Any:
        """A handle of all ranks, as the communicator under test makes one."""
        identity = self.binding.unique_id() if self.rank == 0 else b""
        identity = self.peers.control.broadcast(identity, 0, "the unique id")
        return self.binding.create(self.size, identity, self.rank)

    @contextmanager
    def calls(self) -> Iterator[list[str]]:
        """What is called in a block, a line each, while the device stands still."""
        self.device.frozen = True
        try:
            with self.device.log.section() as lines:
                yield lines
        finally:
            self.device.frozen = False

    def check(self) -> None:
        """Raise what went wrong unseen, such as a write beside an array."""
        self.device.memory.check_guards()
        self.device.check()


def run_seats(
    size: int,
    body: Callable[[Seat], Any],
    *,
    lazy: bool = False,
    faults: dict[int, Faults] | None = None,
    limit: float = LIMIT,
    timeout: float = 20.0,
) -> list[Any]:
    """Run ``body(seat)`` on so many threads, and check each device at the end."""

    def rank_body() -> Any:
        host = threads.world(timeout)
        seat = Seat(host, lazy, (faults or {}).get(host.rank, Faults()), limit)
        try:
            result = body(seat)
            if not seat.spoilt:
                seat.check()
        finally:
            seat.device.close()
        host.close()
        return result

    return run_ranks(size, rank_body, timeout=timeout)
