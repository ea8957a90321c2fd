"""`Recorder`: records the pushes and pulls of a step, for a CUDA graph that repeats them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ncclkv.arrays import cupy
from ncclkv.comm.base import Graph
from ncclkv.engine.bucket_state import Array, BucketState
from ncclkv.engine.update_rule import Rule
from ncclkv.errors import UsageError
from ncclkv.kernels.base import Kernels, Segments


class Recorder:
    """The arrays, buckets and scalars that a captured step needs beside its graph.

    Parameters
    ----------
    kernels : Kernels
        The kernels of the store.
    rule : Rule
        The rule in force, which must be in force at each replay.
    states : sequence of BucketState
        All buckets of the store.

    Attributes
    ----------
    kernels : RecordingKernels
        The kernels used during the capture.
    updates : CapturedUpdates or None
        The scalars of the step's updates.
    graph : Graph or None
        The graph, once the step is captured.
    """

    def __init__(self, kernels: Kernels, rule: Rule, states: Sequence[BucketState]) -> None:
        self._rule = rule
        self._kept: list[object] = []
        probe: Any = kernels.zeros(0, np.dtype(np.uint8))
        self.kernels = RecordingKernels(kernels, probe.device.id, self._kept)
        self.updates = rule.captured(states, self.kernels)
        self.graph: Graph | None = None
        self._step = rule.step()
        self._states: dict[int, BucketState] = {}

    @property
    def states(self) -> list[BucketState]:
        """The buckets of the step, in order."""
        return [self._states[index] for index in sorted(self._states)]

    def include(self, state: BucketState) -> None:
        """Add a bucket that the step writes or reads."""
        self._states[state.bucket.index] = state

    def check_launch(self, state: BucketState) -> None:
        """Refuse the first launch of a bucket, and a launch under another step of the optimizer."""
        if not state.launched:
            raise UsageError(
                f"capture: what is pushed of bucket {state.bucket.index} (key "
                f"{state.bucket.entries[0].key!r} and others) has not been through the store yet; "
                f"make the same step once before it is captured, so that all it needs is there"
            )
        if state.step is not self._step:
            raise UsageError(
                "capture: the optimizer was changed between two pushes of the step, which a replay "
                "cannot repeat; change it before the capture, or between replays"
            )

    def end(self, graph: Graph) -> None:
        """Keep all arrays of the captured step alive as long as its graph."""
        graph.keep_alive(self._kept, self.states)
        self.graph = graph

    def check(self, rule: Rule) -> None:
        """Refuse to replay a step of another rule, or with numbers that are not finite."""
        if rule is not self._rule:
            raise UsageError(
                f"the store's updater is {rule.name} and was {self._rule.name}, another, when this "
                f"step was captured; capture it again"
            )
        rule.step()

    def write_scalars(self) -> None:
        """Put the scalars of a replay where the graph reads them, in the current stream's order."""
        if self.updates is not None:
            self.updates.write()


class RecordingKernels:
    """`Kernels` of a capture: they keep all arrays alive, and allocate nothing.

    Parameters
    ----------
    kernels : Kernels
    device : int
        The id of the device that the step is captured on.
    kept : list
        Receives all arrays that the kernels read and write.
    """

    def __init__(self, kernels: Kernels, device: int, kept: list[object]) -> None:
        self._kernels = kernels
        self._device = device
        self._kept = kept
        self.left = kernels.left
        self.fill = kernels.fill
        self.pack = kernels.pack
        self.unpack = kernels.unpack
        self.pack_all = kernels.pack_all
        self.unpack_all = kernels.unpack_all
        self.reduce = kernels.reduce
        self.checksums = kernels.checksums

    def value(self, x: Any, what: str) -> Array:
        """View a CuPy array of this device to be read at every replay."""
        return self._keep(self._kernels.value(self._lasting(x, what), what))

    def out(self, x: Any, what: str) -> Array:
        """View a CuPy array of this device to be written at every replay."""
        return self._keep(self._kernels.out(self._lasting(x, what), what))

    def _lasting(self, x: Any, what: str) -> Any:
        """Return a CuPy array of this device; refuse any other, which a replay could not read."""
        if isinstance(x, np.ndarray):
            raise UsageError(
                f"{what}: a NumPy array cannot be part of a capture, for it is in host memory; "
                f"make cupy.asarray(array) before the capture, and use that in it"
            )
        if not cupy.is_own(x):
            raise UsageError(
                f"{what}: an object of type {type(x).__name__} cannot be part of a capture, which "
                f"takes CuPy's arrays alone; make a view of it before the capture, such as "
                f"cupy.from_dlpack(array), and use that in it"
            )
        if x.device.id != self._device:
            raise UsageError(
                f"{what}: an array on device {x.device.id} cannot be part of a capture on device "
                f"{self._device}; copy it to that device outside of the capture"
            )
        return x

    def _keep(self, array: Array) -> Array:
        self._kept.append(array)
        return array

    def zeros(self, count: int, dtype: np.dtype[Any]) -> Array:
        """Refuse: nothing is made in a capture."""
        raise UsageError(
            f"capture: a new array of {count} zeros is needed, and nothing is made anew in a "
            f"capture; make the same step once before it is captured"
        )

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Refuse: nothing is made in a capture."""
        raise UsageError(
            "pull inside a capture needs out: an array made before it, which each replay writes"
        )

    def copy(self, array: Array) -> Array:
        """Refuse: nothing is made in a capture."""
        raise UsageError(
            f"capture: the array of shape {array.shape} would have to be copied aside, and nothing "
            f"is made anew in a capture; push a key once in a group and as one array, or as a list "
            f"outside of a group, and no part of another key's grad_view or value"
        )

    def combine(self, values: Sequence[Array], slot: Array, op: str) -> None:
        """Reduce values; refuse a value that would need a copy."""
        strides = [value.strides for value in values if not value.flags.c_contiguous]
        if strides:
            raise UsageError(
                f"capture: one of several arrays of a key is not in C order (strides {strides[0]}) "
                f"and would have to be copied aside; pass it in C order"
            )
        self._kernels.combine(values, slot, op)

    def find_nonfinite(self, array: Array, flag: Array) -> None:
        """Search the array for NaN at each replay."""
        self._kernels.find_nonfinite(array, self._keep(flag))

    def assign(self, total: Array, weights: Array, skip: Array) -> None:
        """Replace the weights at each replay, unless `skip` is not 0 then."""
        self._kernels.assign(total, weights, self._keep(skip))

    def update(
        self,
        program: str,
        weights: Array,
        gradients: Array,
        states: Sequence[Array],
        scalars: Array,
        segments: Segments,
        skip: Array | None = None,
    ) -> None:
        """Update with the scalars, and under the `skip`, of each replay."""
        self._keep(scalars)
        if skip is not None:
            self._keep(skip)
        self._kernels.update(program, weights, gradients, states, scalars, segments, skip)
