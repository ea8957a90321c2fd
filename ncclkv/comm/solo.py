"""`SoloCommunicator`: the communicator of a process that is alone."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from ncclkv import concurrency
from ncclkv.comm import callbacks
from ncclkv.comm.base import Collective, Communicator, closed, left
from ncclkv.comm.buffers import allocate, check_color
from ncclkv.comm.control import CallDigest, ObjectComm
from ncclkv.comm.destinations import To
from ncclkv.comm.diagnosis.roster import check_alone
from ncclkv.comm.transport import Request
from ncclkv.comm.two_step import LEAST
from ncclkv.comm.types import Apply, Buffer, DoneWork, Work
from ncclkv.comm.wire import Program, Wire
from ncclkv.errors import CommAborted, KVStoreError, UsageError
from ncclkv.kernels.host import HostKernels

_WHO = "rank 0 of 1"


class SoloObjectComm(ObjectComm):
    """Objects between a rank and itself."""

    rank = 0

    def allgather(self, item: Any, label: str = "") -> list[Any]:
        callbacks.refuse("control.allgather")
        return [item]

    def barrier(self, label: str = "") -> None:
        callbacks.refuse("control.barrier")


class SoloWire(Wire):
    """The wire of a rank that is alone: it has no peers, and so no messages."""

    def __init__(self) -> None:
        super().__init__(0, 1, LEAST)

    def scratch(self, nbytes: int) -> Buffer:
        return allocate(nbytes)

    def send(self, data: Buffer, peer: int) -> Request:
        raise UsageError(f"{_WHO}: a program sent a message to rank {peer}, and there is no peer")

    def receive(self, into: Buffer, peer: int) -> Request:
        raise UsageError(f"{_WHO}: a program awaits rank {peer}, and there is no peer")

    def fold(self, parts: Sequence[Buffer], total: Buffer, op: str) -> None:
        HostKernels().reduce(parts, total, op)


class SoloCommunicator(Communicator):
    """One rank: every collective is a copy, and complete when it is launched.

    Parameters
    ----------
    timeout : float
        Seconds; nothing waits so long.

    Raises
    ------
    LaunchError
        When an environment variable of the package has a wrong value.
    """

    rank, size = 0, 1
    local_rank, local_size = 0, 1
    nodes = ((0,),)
    name = "one process"

    def __init__(self, timeout: float) -> None:
        check_alone()
        self.timeout = timeout
        self.control = SoloObjectComm()
        self.digest = CallDigest()
        self.kernels = HostKernels()
        self.lock = concurrency.RLock()
        self._failure: KVStoreError | None = None

    def _check(self) -> None:
        """Refuse to go on after the end."""
        if self._failure is not None:
            raise type(self._failure)(*self._failure.args)

    def _reduction(
        self, send: Buffer, receive: Buffer, op: str, to: To, *, sharded_update: bool
    ) -> Collective:
        def start(apply: Apply | None) -> Work:
            self._copy(send, receive)
            if apply is not None and receive.size:
                callbacks.run(_WHO, apply, 0, receive.size)
            return DoneWork()

        return Collective(start)

    def _to_owners(self, send: Buffer, own: Buffer, op: str, to: To) -> Collective:
        return self._reduction(send, own, op, to, sharded_update=False)

    def _broadcast(self, buffer: Buffer, root: int) -> Work:
        self._check()
        return DoneWork()

    def _gather(self, send: Buffer, receive: Buffer, counts: Sequence[int]) -> Work:
        self._copy(send, receive)
        return DoneWork()

    def _program(self, program: Program) -> Collective:
        def start(apply: Apply | None) -> Work:
            self._check()
            callbacks.run(_WHO, deque, program.steps(SoloWire(), apply), 0)
            return DoneWork()

        return Collective(start, program.sent, program.what)

    def _copy(self, send: Buffer, receive: Buffer) -> None:
        """Copy, unless both are the same memory."""
        self._check()
        if send.ctypes.data != receive.ctypes.data:
            np.copyto(receive, send)

    def barrier(self) -> Work:
        callbacks.refuse("barrier")
        self._check()
        return DoneWork()

    def split(self, color: int | None, key: int = 0) -> Communicator | None:
        callbacks.refuse("split")
        self._check()
        check_color(color, key)
        return None if color is None else SoloCommunicator(self.timeout)

    def duplicate(self, timeout: float | None = None) -> Communicator:
        callbacks.refuse("duplicate")
        self._check()
        return SoloCommunicator(self.timeout if timeout is None else timeout)

    def abort(self, reason: str) -> None:
        self._failure = self._failure or CommAborted(left(0, 1, reason))

    def close(self) -> None:
        callbacks.refuse("close")
        self._failure = self._failure or UsageError(closed(0, 1))
