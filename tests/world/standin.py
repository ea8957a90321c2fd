"""Programs on the stand-in of layer 2 (recording stand-in, not NCCL), in a seeded world."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from ncclkv.comm.host import threads
from ncclkv.errors import CommAborted
from tests.harness.context import context_of
from tests.nccl.standin.drawn import draw
from tests.nccl.standin.faults import Faults
from tests.nccl.standin.stores import StandInStores
from tests.nccl.standin.worker import Worker, worker_of_thread
from tests.world import plan
from tests.world.arrays import Array
from tests.world.play import play
from tests.world.player import Player, Store


def play_on_standin(program: plan.Program, *, broken: bool = False) -> None:
    """Run a program on this rank, whose stores are on a device of the stand-in.

    Parameters
    ----------
    program : Program
    broken : bool
        Whether calls of the ranks may differ: NCCL hangs then, and the stand-in is silent.
    """
    steps = tuple(step for step in program.steps if not _is_counted(program, step))
    faults = {rank: Faults(hangs=broken) for rank in range(program.size)}
    with worker_of_thread(faults=faults, drawn=True) as worker:
        play(
            replace(program, steps=steps),
            lambda *parts: StandInPlayer(worker, *parts),
        )


def _is_counted(program: plan.Program, step: plan.Step) -> bool:
    """Return whether an optimizer counts a flush that the device skips, which the model does not.

    A schedule, and each optimizer but SGD, depends on the count of updates.
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

    has_deputies = False  # the streams of a step are those of the rank's own thread

    def __init__(self, worker: Worker, program: plan.Program, stack: ExitStack, files: ExitStack):
        super().__init__(program, stack, files)
        self._worker, self._streams = worker, worker.streams
        self._stores = StandInStores(worker, "every_rank")
        device = worker.device
        self._own = [device.current, device.stream("a stream"), device.stream("another stream")]

    def open(self, **options: Any) -> Any:
        threads._record_creation(self._worker.peers)  # as `create` does
        return self._stores.open(**options)

    def given(self, array: Array) -> Any:
        """Return the array, or a new array on the device, which its stream fills."""
        return array if draw() < 0.2 else self._streams.put(array.copy())

    def write(self, view: Any, array: Array) -> None:
        self._streams.write(view, array)

    def elements(self, found: Any) -> Array:
        """Return an array's elements, which the current stream or another copies to the host."""
        if not hasattr(found, "data") or isinstance(found, np.ndarray):
            return np.asarray(found)
        with self._after_this_stream():
            return self._streams.get(found)

    def doubt(self, store: Store) -> None:
        # A wrong value may come before its error, which the next wait of the host raises.
        context_of(store.kv).comm.synchronize()

    def leave(self) -> None:
        self._worker.has_left = True
        for store in self.stores.values():
            comm: Any = context_of(store.kv).comm
            comm._lifetime.fail(CommAborted("the process ended without closing the communicator"))

    @contextmanager
    def step(self, index: int) -> Iterator[None]:
        self.step_index = index
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
