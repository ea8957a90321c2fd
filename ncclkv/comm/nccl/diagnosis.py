"""Diagnosis of a wait for the device that does not end: NCCL names neither rank nor cause."""

from __future__ import annotations

from collections.abc import Mapping

from ncclkv.comm.base import Communicator
from ncclkv.comm.diagnosis.reports import format_ranks
from ncclkv.comm.nccl.binding import Binding, Handle, version_text
from ncclkv.comm.nccl.order_check import OrderCheck
from ncclkv.comm.nccl.waiting import Deadline
from ncclkv.comm.nccl.work import NcclWork
from ncclkv.errors import CommAborted, CommTimeout, RankDied, RankLost
from ncclkv.system import abort


class Diagnosis:
    """Checks of one communicator that every wait makes.

    Parameters
    ----------
    peers : Communicator
        The same ranks in host memory.
    binding : Binding
    order_check : OrderCheck

    Attributes
    ----------
    thread_multiple : bool
        Whether another thread than the store's may check.
    """

    def __init__(self, peers: Communicator, binding: Binding, order_check: OrderCheck) -> None:
        self._peers = peers
        self._binding = binding
        self._order_check = order_check
        self._who = f"rank {peers.rank} of {peers.size}"
        self.thread_multiple = peers.thread_multiple

    def begin(self, timeout: float | None = None) -> Deadline:
        """Begin a wait; return its deadline, by default the communicator's timeout."""
        self._order_check.begin()
        return Deadline(self._peers.timeout if timeout is None else timeout)

    def check(self, handle: Handle, deadline: Deadline, work: NcclWork | str | None) -> None:
        """Raise an error if a wait cannot end, or has lasted too long.

        Parameters
        ----------
        handle : Handle
        deadline : Deadline
            Deadline of the wait.
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
        in_flight = work is not None
        can_begin = not isinstance(work, NcclWork) or work.can_begin()
        what = str(work) if in_flight else "the work of the current stream"
        problem = self._binding.async_error(handle)
        if problem is not None:
            raise CommAborted(f"{self._who}: {what}: {self._named()} reports: {problem}")
        departed = self._peers.left_ranks() if in_flight else {}
        dead = self._order_check.dead() if in_flight else set()
        mismatch = self._order_check.poll(deadline, str(what)) if in_flight else None
        if mismatch is not None:
            raise mismatch
        if departed and deadline.grace_expired():
            rank, reason = cause(departed)
            raise RankLost(
                f"{self._who}: rank {rank} left while {what} waited for it; it said: {reason}"
            )
        if dead and deadline.grace_expired():
            raise RankDied(
                f"{self._who}: {format_ranks(dead)} ended while {what} was in flight, and said "
                f"nothing; {self._order_check.last(dead)}"
            )
        if deadline.late():
            raise CommTimeout(
                f"{self._who}: {what} waited {deadline.waited:.1f} s (timeout {deadline.limit:g} "
                f"s) for {self._missing(in_flight, can_begin)}"
            )

    def _missing(self, in_flight: bool, can_begin: bool) -> str:
        """Describe the missing part of a wait: the device, or other ranks."""
        if not in_flight or self._peers.size == 1:
            return "the device; give it a longer timeout"
        if not can_begin:
            return (
                "the device, which has not done what this rank gave it before; look for a kernel "
                "that does not end, or give it a longer timeout"
            )
        last = self._order_check.last(self._order_check.others)
        return (
            f"the other ranks ({self._named()} does not tell which of them); all ranks must make "
            f"the same calls in the same order: look at what the others did instead"
            f"{'; ' if last else ''}{last}"
        )

    def _named(self) -> str:
        """Return the name of the library and its version."""
        return f"{self._binding.name} ({version_text(self._binding.version())})"


def cause(departed: Mapping[int, str]) -> tuple[int, str]:
    """Return the rank that left first, as far as the reasons show it, and its reason."""
    return min(departed.items(), key=lambda each: (abort.follows(each[1]), each[0]))
