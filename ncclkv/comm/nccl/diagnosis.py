"""Diagnosis of a wait for the device that does not end: NCCL names neither rank nor cause."""

from __future__ import annotations

from collections.abc import Collection

from ncclkv.comm.base import Communicator
from ncclkv.comm.diagnosis import waits
from ncclkv.comm.diagnosis.farewells import left_error
from ncclkv.comm.diagnosis.hang import AwaitedWork, HangDetector, Progress
from ncclkv.comm.diagnosis.reports import format_ranks
from ncclkv.comm.nccl.binding import Look, version_text
from ncclkv.comm.nccl.deadlines import Deadline
from ncclkv.comm.nccl.lifetime import Lifetime
from ncclkv.comm.nccl.order_check import OrderCheck
from ncclkv.comm.nccl.work import NcclWork
from ncclkv.errors import CommAborted, CommTimeout, KVStoreError, RankDied
from ncclkv.system import abort

# Ranks that the text of an error names.
_MAX_NAMED = 8

_NO_PROGRESS = Progress()
"""The device advances without calls of the host."""


class DeviceWait(Deadline, AwaitedWork):
    """A wait of the host for the device; its ``what`` describes the collective in messages."""

    def __init__(self, limit: float, others: set[int]) -> None:
        super().__init__(limit)
        self._others = others
        self.what = ""

    def __str__(self) -> str:
        return self.what

    def missing(self) -> set[int]:
        return self._others


class DeviceHangs(HangDetector):
    """Hang detector of waits in which NCCL does not name the missing rank."""

    def _describe_wait(self, missing: set[int]) -> tuple[str, str]:
        # A rank that shows no wait of its own may be missing.
        ends = waits.chain_ends(self._calls, missing)
        return f"{format_ranks(ends)}, or for the network", self._calls.describe_calls(ends)


class Diagnosis:
    """Checks of one communicator that every wait makes.

    Parameters
    ----------
    lifetime : Lifetime
    order_check : OrderCheck
    """

    def __init__(self, lifetime: Lifetime, order_check: OrderCheck) -> None:
        peers, binding = lifetime.peers, lifetime.binding
        self._lifetime = lifetime
        self._peers = peers
        self._detector = None if peers.calls is None else DeviceHangs(peers.calls)
        self._others = {*range(peers.size)} - {peers.rank}
        self._order_check = order_check
        self._async_error = binding.async_error
        self._nccl = f"{binding.name} ({version_text(binding.version())})"
        self._wait: DeviceWait | None = None

    def begin(self, timeout: float | None = None) -> DeviceWait:
        """Begin a wait, by default with the communicator's timeout."""
        self.end()
        self._wait = DeviceWait(self._peers.timeout if timeout is None else timeout, self._others)
        return self._wait

    def end(self) -> None:
        """End a wait: clear the wait that this rank shows to its peers."""
        if self._wait is not None and self._wait.looks.made and self._peers.calls is not None:
            self._peers.calls.recorder.clear_wait()
        self._wait = None

    def check(self, wait: DeviceWait, work: NcclWork | str | None) -> None:
        """Raise an error if a wait cannot end, or has lasted too long; report a long wait.

        Parameters
        ----------
        wait : DeviceWait
        work : NcclWork, str or None
            The collective that the wait is for; None for other work of the device.

        Raises
        ------
        CommAborted
            When NCCL reports an error.
        OrderMismatch
            When the ranks' calls differ.
        RankLost, RankDied
            When a rank has left, or its process has ended.
        CommTimeout
            When the deadline has passed.
        """
        what = wait.what = "the work of the current stream" if work is None else str(work)
        self._wait = wait  # the watcher goes on with its wait after a wait of the store's thread
        can_begin = not isinstance(work, NcclWork) or work.can_begin()
        who = self._lifetime.who
        problem = self._async_error(self._lifetime.handle)
        if problem is not None:
            raise CommAborted(f"{who}: {what}: {self._nccl} reports: {problem}")
        # Always: a rank that waits for a barrier needs this rank's messages.
        self._order_check.poll()
        if work is not None:
            self._check_peers(wait, what)
        if wait.late():
            raise CommTimeout(
                f"{who}: {what} waited {wait.waited:.1f} s (timeout {wait.limit:g} "
                f"s) for {self._missing(work is not None, can_begin)}"
            )

    def _check_peers(self, wait: DeviceWait, what: str) -> None:
        """Raise an error if calls differ, or if a lost rank is needed; report a long wait."""
        lost = lost_rank(self._peers, f"{what} waited for it", f"{self._lifetime.who}: ")
        if self._detector is not None:
            found = self._detector.compare(_NO_PROGRESS, wait, wait.waited)
            if found is not None:
                raise found
            self._detector.report(_NO_PROGRESS, wait, wait.waited, wait.limit)
        if lost is not None and wait.grace_expired():
            raise lost

    def _missing(self, in_flight: bool, can_begin: bool) -> str:
        """Describe the cause of a wait, with advice: the device, or the other ranks."""
        if not (in_flight and self._others):
            return "the device; set a longer timeout"
        if not can_begin:
            return (
                "the device, which has not completed this rank's earlier work; look for a kernel "
                "that does not end, or set a longer timeout"
            )
        return (
            f"the other ranks ({format_ranks(self._others, _MAX_NAMED)}; {self._nccl} does not "
            f"name the missing rank); all ranks must make the same calls in the same order: look "
            f"at what the others did instead"
            f"{last_calls(self._peers, self._others)}"
        )


def lost_rank(peers: Communicator, waiting: str, prefix: str = "") -> KVStoreError | None:
    """Return the error to raise if a rank has left, or its process has ended.

    If several ranks have left, the error names a rank whose farewell blames no other, if any.
    `waiting` describes what needed the rank.
    """
    if left := peers.left_ranks():
        rank, reason = min(left.items(), key=lambda each: (abort.follows(each[1]), each[0]))
        return left_error(rank, reason, waiting, prefix)
    if peers.calls is not None and (dead := peers.calls.ended_ranks()):
        return RankDied(
            f"{prefix}{format_ranks(dead)} ended while {waiting}, and sent no farewell"
            f"{last_calls(peers, dead)}",
            ranks=dead,
        )
    return None


def look_for_lost(peers: Communicator, waiting: str) -> Look:
    """Return a function that raises `lost_rank`'s error if a rank has been lost for 0.2 s."""
    deadline = Deadline(peers.timeout)

    def look() -> None:
        deadline.tick()
        lost = lost_rank(peers, waiting, f"rank {peers.rank} of {peers.size}: ")
        if lost is not None and deadline.grace_expired():
            raise lost

    return look


def last_calls(peers: Communicator, ranks: Collection[int]) -> str:
    """Describe the last calls of `ranks`, as far as reports have arrived, for the end of a text."""
    text = "" if peers.calls is None else peers.calls.describe_calls(ranks)
    return f"; {text}" if text else ""
