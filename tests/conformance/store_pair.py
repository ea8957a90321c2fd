"""Two stores with the same calls, one by replays of a captured step: all bits must be equal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.conformance.capabilities import current_buffers
from tests.conformance.expect import same
from tests.conformance.stores import Stores

SIZES = {"a": 64, "b": 64, "c": 200, "d": 250, "e": 3}
"""Elements by key; with buckets of 1 KiB of float32, a and b share one and d and e another."""


class Side:
    """A store with a key of each size, and arrays of the user's for each.

    Attributes
    ----------
    kv : KVStore
    keys : list of str
    gradients, outs : list of device arrays
    optimizer : Optimizer or None
    own : dict
        What a case keeps for a side.
    """

    def __init__(
        self, create: Stores, make: Callable[[], Any], dtype: Any, op: str, codec: Any
    ) -> None:
        self.kv = create(bucket_bytes=1024)
        if codec is not None:
            self.kv.set_gradient_compression(codec)
        self.keys = list(SIZES)
        self.own: dict[str, Any] = {}
        self.optimizer = make()
        if self.optimizer is not None:
            self.kv.set_optimizer(self.optimizer)
        self.kv.init(self.keys, [np.full(n, 9, dtype) for n in SIZES.values()], op=op)
        self.gradients = [current_buffers().put(np.zeros(n, dtype)) for n in SIZES.values()]
        self.outs = [current_buffers().put(np.full(n, -1, dtype)) for n in SIZES.values()]

    def write(self, step: int) -> None:
        """Write this step's gradients, small integers that no sum rounds."""
        for index, gradient in enumerate(self.gradients):
            values = np.arange(gradient.size) % 7 + index + step * (self.kv.rank + 1)
            current_buffers().write(gradient, values.astype(gradient.dtype))

    def pushpull(self) -> None:
        """Run the plainest step."""
        self.kv.pushpull(self.keys, self.gradients, self.outs)

    def values(self) -> list[Any]:
        """Return the store's values and the user's arrays, on the host."""
        stored = [current_buffers().get(array).copy() for array in self.kv.pull(self.keys)]
        return stored + [current_buffers().get(array).copy() for array in self.outs]


class StorePair:
    """A store that runs its steps, and a store that replays a captured step.

    Parameters
    ----------
    create : Stores
    step : callable
        ``step(side)`` makes the calls of a step.
    make : callable
        Makes the optimizer of a side, or None.
    codec : dict, optional
        By which gradients are encoded.
    """

    def __init__(
        self,
        create: Stores,
        step: Callable[[Side], object] = Side.pushpull,
        make: Callable[[], Any] = lambda: None,
        *,
        dtype: Any = np.float32,
        op: str = "sum",
        codec: Any = None,
    ) -> None:
        self.plain, self.replayed = (Side(create, make, dtype, op, codec) for _ in range(2))
        self.sides = (self.plain, self.replayed)
        self._step = step
        self._steps = 0
        for side in self.sides:
            side.write(0)
            step(side)
        self.captured = self.capture()

    def capture(self) -> Any:
        """Capture the step; nothing may change before its replay."""
        self.compare()
        before = self.replayed.values()
        with self.replayed.kv.capture() as captured:
            self._step(self.replayed)
        same_all(self.replayed.values(), before)
        return captured

    def each(self, change: Callable[[Side], object]) -> None:
        """Call a function for both stores."""
        for side in self.sides:
            change(side)

    def step(self, write: bool = True) -> None:
        """Run a step on both stores, with new gradients."""
        self._steps += 1
        if write:
            self.each(lambda side: side.write(self._steps))
        self._step(self.plain)
        self.captured.replay()

    def compare(self) -> None:
        """Fail unless both stores and the user's arrays have the same bits."""
        same_all(self.replayed.values(), self.plain.values())

    def steps(self, count: int = 3) -> None:
        """Run steps, and compare after each."""
        for _ in range(count):
            self.step()
            self.compare()


def same_all(got: list[Any], wanted: list[Any]) -> None:
    """Fail unless arrays are the same, bit for bit."""
    for one, other in zip(got, wanted, strict=True):
        same(one, other)
        assert one.tobytes() == other.tobytes()
