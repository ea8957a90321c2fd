"""The host communicator that the communicator under test is given."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ncclkv.comm.base import Communicator
from ncclkv.comm.control import ObjectComm
from ncclkv.comm.types import Work
from tests.nccl.standin.binding import RecordingBinding
from tests.nccl.standin.hosts import twin
from tests.nccl.standin.log import CallLog


class Peers:
    """A host communicator that makes one for the stand-in with each communicator split off.

    The stand-in moves data among the ranks of every communicator, and they need not all be present
    at its creation. So its own communicator is made when all must be present. Collectives of hosts
    are in the log, since a step pays for them as for calls of NCCL.
    """

    def __init__(
        self,
        host: Communicator,
        binding: RecordingBinding,
        limit: float,
        log: CallLog,
    ) -> None:
        self._host = host
        self._binding = binding
        self._limit = limit
        self._log = log
        self.control = LoggedControl(host.control, log)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._host, name)

    @contextmanager
    def lend(self) -> Iterator[None]:
        with self._host.lend(), self._binding.lend():
            yield

    def barrier(self) -> Work:
        self._log.add("hosts: barrier")
        return self._host.barrier()

    def split(self, color: int | None, key: int = 0) -> Any:
        own = self._host.split(color, key)
        child = self._host.split(color, key)
        if own is None or child is None:
            return None
        self._binding.offer(own)
        return Peers(child, self._binding, self._limit, self._log)

    def duplicate(self, timeout: float | None = None) -> Any:
        child = self._host.duplicate(timeout)  # the first, because it obeys the deadline
        self._binding.offer(twin(self._host, self._limit))
        return Peers(child, self._binding, self._limit, self._log)


class LoggedControl:
    """The object messages of a host communicator, each a line of the log."""

    def __init__(self, control: ObjectComm, log: CallLog) -> None:
        self._control = control
        self._log = log

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._control, name)
        if not callable(found):
            return found

        def call(*arguments: Any, **named: Any) -> Any:
            self._log.add(f"hosts: {name}")
            return found(*arguments, **named)

        return call
