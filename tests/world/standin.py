"""Programs on the stand-in of layer 2 (recording stand-in, not NCCL), in a seeded world."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from tests.nccl.standin.drawn import draw
from tests.nccl.standin.stores import StandInStores
from tests.nccl.standin.worker import Worker, worker_of_thread
from tests.world import plan
from tests.world.model import Array
from tests.world.play import play
from tests.world.player import Player


def play_on_standin(program: plan.Program) -> None:
    """Run a program on this rank, whose stores are on a device of the stand-in."""
    steps = tuple(step for step in program.steps if not _is_counted(program, step))
    with worker_of_thread(drawn=True) as worker:
        play(replace(program, steps=steps), lambda *parts: StandInPlayer(worker, *parts))


def _is_counted(program: plan.Program, step: plan.Step) -> bool:
    """Return whether an optimizer counts a flush that the device skips, which the model does not.

    A schedule, and each optimizer but SGD, depends on the number of updates.
    """
    if not isinstance(step, plan.PushNonFinite):
        return False
    used = program.stores[step.store].optimizer
    return used is not None and not (isinstance(used, plan.Sgd) and not used.halved_after)


class StandInPlayer(Player):
    """A rank whose arrays are on a device, and whose steps are on drawn streams.

    Parameters
    ----------
    worker : Worker
    program, stack, files
        As a `Player` has them.
    """

    def __init__(self, worker: Worker, program: plan.Program, stack: ExitStack, files: ExitStack):
        super().__init__(program, stack, files)
        self._streams = worker.streams
        self._stores = StandInStores(worker, "every_rank")
        device = worker.device
        self._own = [device.current, device.stream("a stream"), device.stream("another stream")]

    def open(self, **options: Any) -> Any:
        return self._stores.open(**options)

    def given(self, array: Array) -> Any:
        """Return the array, or a new array on the device, which its stream fills."""
        return array if draw() < 0.2 else self._streams.put(array)

    def numbers(self, found: Any) -> Array:
        """Return an array's numbers, which the current stream or another copies to the host."""
        if not hasattr(found, "data") or isinstance(found, np.ndarray):
            return np.asarray(found)
        with self._after_this_stream():
            return self._streams.get(found)

    @contextmanager
    def step(self, number: int) -> Iterator[None]:
        self.number = number
        with self._after_this_stream():
            yield

    @contextmanager
    def _after_this_stream(self) -> Iterator[None]:
        """Make a drawn stream current, which waits for the stream before it."""
        streams = self._streams
        before, drawn = streams.current(), self._own[int(draw() * len(self._own))]
        if drawn != before:
            streams.wait(drawn, streams.record(before))
        with streams.on(drawn):
            yield
        if drawn != before:
            streams.wait(before, streams.record(drawn))
