"""Kernels of stores on the stand-in's arrays: NumPy's, in the order of the current stream."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ncclkv.arrays import as_gpu_out, as_gpu_value
from ncclkv.kernels.base import Segments
from ncclkv.kernels.host import HostKernels
from tests.nccl.standin.streams import RecordingStreams

_HOST = HostKernels()


class StandInKernels:
    """A `ncclkv.kernels.base.Kernels` for arrays of a stand-in's device, or of the host."""

    value = staticmethod(as_gpu_value)
    out = staticmethod(as_gpu_out)

    def __init__(self, streams: RecordingStreams) -> None:
        self._streams = streams

    def zeros(self, count: int, dtype: np.dtype[Any]) -> Any:
        return self._streams.allocate(count * np.dtype(dtype).itemsize).view(dtype)

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        """Return an array full of poison."""
        array = self.zeros(math.prod(shape), dtype)
        self._streams.poison(array)
        return array.reshape(shape)

    def left(self) -> int | None:
        return self._streams.device.left()

    def fill(self, array: Any, value: float) -> None:
        self._streams.work(f"fill {value} into", (), [array], lambda view: view.fill(value))

    def copy(self, array: Any) -> Any:
        if isinstance(array, np.ndarray):
            return _HOST.copy(array)
        new = self.empty(array.shape, array.dtype)
        self._streams.work("copy", [array], [new], lambda old, view: np.copyto(view, old))
        return new

    def pack(self, value: Any, slot: Any) -> None:
        self._streams.work("pack", [value], [slot], _HOST.pack)

    def unpack(self, slot: Any, out: Any) -> None:
        self._streams.work("unpack", [slot], [out], _HOST.unpack)
        self._read([out])

    def pack_all(self, values: Sequence[Any], slots: Sequence[Any], table: Any = None) -> Any:
        return self._copy_all("pack_all", values, slots, _HOST.pack, table)

    def unpack_all(self, slots: Sequence[Any], outs: Sequence[Any], table: Any = None) -> Any:
        table = self._copy_all("unpack_all", slots, outs, _HOST.unpack, table)
        self._read(outs)
        return table

    def combine(self, values: Sequence[Any], slot: Any, op: str) -> None:
        self._streams.work(
            "combine", values, [slot], lambda *views: _HOST.combine(views[:-1], views[-1], op)
        )

    def reduce(self, parts: Sequence[Any], out: Any, op: str) -> None:
        self._streams.work(
            "reduce", parts, [out], lambda *views: _HOST.reduce(views[:-1], views[-1], op)
        )

    def find_nonfinite(self, array: Any, flag: Any) -> None:
        self._streams.work("find_nonfinite", [array], [flag], _HOST.find_nonfinite)

    def assign(self, total: Any, weights: Any, skip: Any) -> None:
        def run(total: Any, skip: Any, weights: Any) -> None:
            _HOST.assign(total, weights, skip)

        self._streams.work("assign", [total, skip], [weights], run)

    def update(
        self,
        program: str,
        weights: Any,
        gradients: Any,
        states: Sequence[Any],
        scalars: Any,
        segments: Segments,
        skip: Any | None = None,
        master: Any | None = None,
    ) -> None:
        lo, hi = int(segments.bounds[0]), int(segments.bounds[-1])
        reads = [scalars, *([] if skip is None else [skip]), gradients[lo:hi]]
        masters = [] if master is None else [master]
        changed = [array[lo:hi] for array in (weights, *states, *masters)]
        inside = Segments(segments.bounds - lo)
        # Not the arrays: recorded work must not keep them alive.
        has_skip, has_master = skip is not None, master is not None

        def run(scalars: Any, *views: Any) -> None:
            skip, views = (views[0], views[1:]) if has_skip else (None, views)
            gradients, weights, *states = views
            wide = states.pop() if has_master else None
            _HOST.update(program, weights, gradients, states, scalars, inside, skip, wide)

        self._streams.work(program, reads, changed, run)

    def checksums(self, arrays: Sequence[Any]) -> Any:
        sums = self.zeros(len(arrays), np.dtype(np.uint64))

        def run(*views: Any) -> None:
            views[-1][...] = _HOST.checksums(views[:-1])

        self._streams.work("checksums", arrays, [sums], run)
        return sums

    def _copy_all(
        self,
        name: str,
        sources: Sequence[Any],
        targets: Sequence[Any],
        one: Callable[[Any, Any], None],
        table: Any,
    ) -> Any:
        """Copy each source to its target, as one kernel does."""

        count = len(sources)  # not the arrays: recorded work must not keep them alive

        def run(*views: Any) -> None:
            for source, target in zip(views[:count], views[count:], strict=True):
                one(source, target)

        self._streams.work(name, sources, targets, run)
        return table or object()

    def _read(self, outs: Sequence[Any]) -> None:
        """Wait for the stream if an array of the host is written, as a kernel's caller does."""
        if any(isinstance(out, np.ndarray) for out in outs):
            self._streams.device.drain(self._streams.current())
