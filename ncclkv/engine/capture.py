"""`Recorder`: records the pushes and pulls of a step, for a CUDA graph that repeats them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ncclkv.arrays import cupy
from ncclkv.comm.base import Graph
from ncclkv.engine.codec_rules import CodecRule
from ncclkv.engine.storage import Array, StoredBucket
from ncclkv.engine.update_rule import Rule
from ncclkv.errors import UsageError
from ncclkv.kernels.base import Kernels


class Recorder:
    """The arrays, buckets and scalars of a captured step, beside its graph.

    Parameters
    ----------
    kernels : Kernels
    rule : Rule
        The update rule in force, which must be in force at each replay, too.
    states : sequence of StoredBucket
        All buckets of the store.
    codecs : sequence of CodecRule
        The rules of compression in force, which must be in force at each replay, too.

    Attributes
    ----------
    kernels : Kernels
        The `RecordingKernels` used during the capture.
    updates : CapturedUpdates or None
        The scalars of the step's updates.
    graph : Graph or None
        The graph, once the step is captured.
    """

    def __init__(
        self,
        kernels: Kernels,
        rule: Rule,
        states: Sequence[StoredBucket],
        codecs: Sequence[CodecRule],
    ) -> None:
        self._rule = rule
        self._codecs = [*codecs]
        self._kept: list[object] = []
        probe: Any = kernels.zeros(0, np.dtype(np.uint8))
        recording: Any = RecordingKernels(kernels, probe.device.id, self._kept)
        self.kernels: Kernels = recording
        self.updates = rule.captured(states, self.kernels)
        self.graph: Graph | None = None
        self._step = rule.step()
        self._states: dict[int, StoredBucket] = {}

    @property
    def states(self) -> list[StoredBucket]:
        """The buckets of the step, in order."""
        return [self._states[index] for index in sorted(self._states)]

    def include(self, state: StoredBucket) -> None:
        """Add a bucket that the step writes or reads."""
        self._states[state.bucket.index] = state

    def check_launch(self, state: StoredBucket) -> None:
        """Refuse the first launch of a bucket, and a launch under another step of the optimizer."""
        if not state.launched:
            raise UsageError(
                f"capture: bucket {state.bucket.index} (key {state.bucket.entries[0].key!r} and "
                f"others) was never launched under this updater; make the same step once before "
                f"it is captured, which allocates all that it needs"
            )
        if state.step is not self._step:
            raise UsageError(
                "capture: the optimizer changed between two pushes of the step, which a replay "
                "cannot repeat; change it before the capture, or between replays"
            )

    def end(self, graph: Graph) -> None:
        """Keep all arrays of the captured step alive for the life of its graph."""
        graph.keep_alive(self._kept, self.states)
        self.graph = graph

    def check(self, rule: Rule, codecs: Sequence[CodecRule]) -> None:
        """Refuse a replay under other rules, or with a hyperparameter that is not finite."""
        if rule is not self._rule:
            raise UsageError(
                f"replay: the store's updater is {rule.name} and was {self._rule.name}, another, "
                f"when this step was captured; capture it again"
            )
        if [*codecs] != self._codecs:
            raise UsageError(
                "replay: set_gradient_compression was called after this step was captured, and a "
                "replay would encode as before; capture it again"
            )
        rule.step()


class RecordingKernels:
    """Kernels of a capture: they keep the graph's arrays alive, and allocate nothing.

    A replay reads and writes the arrays of each captured call.  They are kept alive: a replay would
    otherwise use freed memory.

    Parameters
    ----------
    kernels : Kernels
    device : int
        The id of the device that the step is captured on.
    kept : list
        Receives the arguments of all calls.
    """

    def __init__(self, kernels: Kernels, device: int, kept: list[object]) -> None:
        self._kernels = kernels
        self._device = device
        self._kept = kept

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method: Callable[..., Any] = getattr(self._kernels, name)

        def call(*arguments: Any) -> Any:
            self._kept.extend(arguments)
            return method(*arguments)

        return call

    def value(self, x: Any, what: str) -> Array:
        """Return a view of a CuPy array of this device, which every replay reads."""
        return self._kernels.value(self._lasting(x, what), what)

    def out(self, x: Any, what: str) -> Array:
        """Return a view of a CuPy array of this device, which every replay writes."""
        return self._kernels.out(self._lasting(x, what), what)

    def _lasting(self, x: Any, what: str) -> Any:
        """Return a CuPy array of this device; refuse any other, which a replay could not read."""
        if isinstance(x, np.ndarray):
            raise UsageError(
                f"{what}: a NumPy array cannot be part of a capture, for it is in host memory; "
                f"make cupy.asarray(array) before the capture, and pass that array"
            )
        if not cupy.is_own(x):
            raise UsageError(
                f"{what}: an object of type {type(x).__name__} cannot be part of a capture, which "
                f"takes CuPy arrays only; make a view before the capture, such as "
                f"cupy.from_dlpack(array), and pass that view"
            )
        if x.device.id != self._device:
            raise UsageError(
                f"{what}: an array on device {x.device.id} cannot be part of a capture on device "
                f"{self._device}; copy it to device {self._device} before the capture"
            )
        return x

    def zeros(self, count: int, dtype: np.dtype[Any]) -> Array:
        """Refuse: a capture allocates no memory."""
        raise UsageError(
            f"capture: the step needs a new array of {count} {dtype} zeros, and a capture "
            f"allocates no memory; make the same step once before it is captured"
        )

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Refuse: a capture allocates no memory."""
        raise UsageError(
            "pull inside a capture needs out, since a capture allocates no memory; give an array "
            "made before the capture, which each replay writes"
        )

    def copy(self, array: Array) -> Array:
        """Refuse: a capture allocates no memory."""
        raise UsageError(
            f"capture: the array of shape {array.shape} would have to be copied, and a capture "
            f"allocates no memory; push a key once in a group and as one array, or as a list "
            f"outside of a group, and no part of another key's grad_view or value"
        )

    def combine(self, values: Sequence[Array], slot: Array, op: str) -> None:
        """Reduce values; refuse a value that would need a copy."""
        strides = [value.strides for value in values if not value.flags.c_contiguous]
        if strides:
            raise UsageError(
                f"capture: one of several arrays of a key is not in C order (strides {strides[0]}) "
                f"and would have to be copied; pass it in C order"
            )
        self._kept.extend(values)
        self._kernels.combine(values, slot, op)
