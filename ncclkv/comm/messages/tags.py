"""Tags: a tag and scratch memory for each collective in flight that exchanges messages."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import count

import numpy as np

from ncclkv.comm.buffers import allocate
from ncclkv.comm.messages.channel import Channel
from ncclkv.comm.messages.progress import ProgressEngine, Steps, StepWork
from ncclkv.comm.transport import Transport
from ncclkv.comm.types import Buffer
from ncclkv.kernels.host import HostKernels

# Tags go round, for MPI may allow none above 32767: the collective that had a tag before is waited
# for, so that no two in flight share one.
_TAGS = 8192
_FIRST_TAG = 16


class _Scratch:
    """Memory that one collective at a time receives its parts into; grows and stays."""

    def __init__(self) -> None:
        self._space = np.empty(0, np.uint8)

    def __call__(self, nbytes: int) -> Buffer:
        if self._space.size < nbytes:
            self._space = allocate(nbytes)
        return self._space[:nbytes]


class TagPool:
    """Hands every collective a lane of its own.

    Parameters
    ----------
    transport : Transport
    flight : Flight
        What the collectives are launched in.
    offset : int
        0 or 1: two that share a transport take every other tag each.
    """

    def __init__(self, transport: Transport, flight: ProgressEngine, offset: int) -> None:
        self._transport = transport
        self._flight = flight
        self._tags = (_FIRST_TAG + offset + 2 * (number % _TAGS) for number in count())
        self._holders: deque[StepWork] = deque()
        self._spare: list[_Scratch] = []
        self._kernels = HostKernels()

    def launch(self, steps: Callable[[Channel], Steps], what: object, label: str = "") -> StepWork:
        """Start the collective that `steps` makes of a lane."""
        while self._holders and self._holders[0].finished:
            self._holders.popleft()
        if len(self._holders) == _TAGS:
            self._holders.popleft().wait()
        run = self._run(steps, next(self._tags), self._flight.mark.value)
        work = self._flight.launch(StepWork(run, what))
        self._holders.append(work)
        work.label = label
        return work

    def _run(self, steps: Callable[[Channel], Steps], tag: int, mark: int) -> Steps:
        """The collective's steps, with scratch memory that is handed on at their end."""
        scratch = self._spare.pop() if self._spare else _Scratch()
        yield from steps(Channel(self._transport, tag, self._kernels, scratch, mark))
        self._spare.append(scratch)
