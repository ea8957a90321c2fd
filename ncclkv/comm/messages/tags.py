"""Tags: a tag and scratch memory for each collective in flight that exchanges messages.

A collective has its tag while it is in flight.  So ranks may wait for collectives in any order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import count

import numpy as np

from ncclkv.comm.buffers import allocate
from ncclkv.comm.messages.channel import Channel
from ncclkv.comm.messages.progress import Arrivals, ProgressEngine, StepWork
from ncclkv.comm.transport import Steps, Transport
from ncclkv.comm.types import Buffer
from ncclkv.kernels.host import HostKernels

# Tags are reused, as MPI may allow none above 32767.  A launch first waits for the collective that
# had its tag: two collectives with one tag would receive each other's messages.
_TAGS = 8192
_FIRST_TAG = 16


class _Scratch:
    """Memory that one collective at a time receives parts into; grows, and is never freed."""

    def __init__(self) -> None:
        self._memory = np.empty(0, np.uint8)

    def __call__(self, nbytes: int) -> Buffer:
        if self._memory.size < nbytes:
            self._memory = allocate(nbytes)
        return self._memory[:nbytes]


class TagPool:
    """Gives every collective a channel of its own.

    Parameters
    ----------
    transport : Transport
    progress : ProgressEngine
        Launches the collectives.
    offset : int
        0 or 1: two pools of one transport use the even and the odd tags.
    """

    def __init__(self, transport: Transport, progress: ProgressEngine, offset: int) -> None:
        self._transport = transport
        self._progress = progress
        self._tags = (_FIRST_TAG + offset + 2 * (index % _TAGS) for index in count())
        self._holders: deque[StepWork] = deque()
        self._spare: list[_Scratch] = []
        self._kernels = HostKernels()

    def launch(
        self,
        steps: Callable[[Channel], Steps],
        what: object,
        label: str = "",
        arrivals: Arrivals = dict,
        mark: int = 0,
    ) -> StepWork:
        """Start the collective that `steps` makes on a channel.

        Ranks with another `mark` raise `OrderMismatch`, as ranks with another digest do.
        """
        while self._holders and self._holders[0].finished:
            self._holders.popleft()
        if len(self._holders) == _TAGS:
            self._holders.popleft().wait()
        run = self._run(steps, next(self._tags), self._progress.digest.value ^ mark)
        work = self._progress.launch(StepWork(run, what, arrivals))
        self._holders.append(work)
        work.label = label
        return work

    def _run(self, steps: Callable[[Channel], Steps], tag: int, digest: int) -> Steps:
        """Run the steps with scratch memory, which a later collective uses again."""
        scratch = self._spare.pop() if self._spare else _Scratch()
        yield from steps(Channel(self._transport, tag, self._kernels, scratch, digest))
        self._spare.append(scratch)
