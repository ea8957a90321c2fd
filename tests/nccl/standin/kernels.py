"""Kernels of stores on the stand-in's arrays: NumPy's, in the order of the current stream."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ncclkv.arrays import as_gpu_out, as_gpu_value
from ncclkv.kernels.base import Measured, Segments
from ncclkv.kernels.host import HostKernels
from tests.nccl.standin.coding import StandInCoding
from tests.nccl.standin.streams import RecordingStreams

_HOST = HostKernels()


class StandInKernels:
    """A `ncclkv.kernels.base.Kernels` for arrays of a stand-in's device, or of the host."""

    value = staticmethod(as_gpu_value)
    out = staticmethod(as_gpu_out)

    def __init__(self, streams: RecordingStreams) -> None:
        self._streams = streams
        self.coding = StandInCoding(streams)

    def zeros(self, count: int, dtype: np.dtype[Any]) -> Any:
        return self._streams.allocate(count * np.dtype(dtype).itemsize).view(dtype)

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        """Return an array full of poison."""
        array = self.zeros(math.prod(shape), dtype)
        self._streams.poison(array)
        return array.reshape(shape)

    def not_in_c(self, dtype: np.dtype[Any], op: str) -> str:
        return ""

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

    def divide(self, array: Any, count: int) -> None:
        def run(array: Any) -> None:
            _HOST.divide(array, count)

        self._streams.work("divide", [], [array], run)

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
        measured: Measured | None = None,
    ) -> None:
        lo, hi = int(segments.bounds[0]), int(segments.bounds[-1])
        sums, total = measured or Measured()
        inside, given = Segments(segments.bounds - lo), (skip, sums, total)
        masters = [] if master is None else [master]
        reads = [scalars, *(each for each in given if each is not None), gradients[lo:hi]]
        changed = [array[lo:hi] for array in (weights, *states, *masters)]
        # Not the arrays: recorded work must not keep them alive.
        has_master, has = master is not None, [each is not None for each in given]

        def run(scalars: Any, *views: Any) -> None:
            (skip, sums, total), views = _taken(views, has)
            gradients, weights, *states = views
            wide = states.pop() if has_master else None
            found = Measured(sums, total)
            _HOST.update(program, weights, gradients, states, scalars, inside, skip, wide, found)

        self._streams.work(program, reads, changed, run)

    def measure(
        self,
        program: str,
        weights: Any,
        gradients: Any,
        states: Sequence[Any],
        scalars: Any,
        segments: Segments,
        sums: Any,
        scratch: Any,
        skip: Any | None = None,
        master: Any | None = None,
        measured: Measured | None = None,
    ) -> None:
        lo, hi = int(segments.bounds[0]), int(segments.bounds[-1])
        total = None if measured is None else measured.total
        wide = None if master is None else master[lo:hi]
        inside, given = Segments(segments.bounds - lo), (skip, total, wide)
        reads = [scalars, *(each for each in given if each is not None)]
        reads += [weights[lo:hi], gradients[lo:hi]]
        changed = [*(state[lo:hi] for state in states), sums, scratch]
        has, shape = [each is not None for each in given], sums.shape

        def run(scalars: Any, *views: Any) -> None:
            (skip, total, wide), views = _taken(views, has)
            weights, gradients, *states, sums, scratch = views
            given = program, weights, gradients, states, scalars, inside, sums.reshape(shape)
            _HOST.measure(*given, scratch, skip, wide, Measured(total=total))

        self._streams.work(f"{program} norms", reads, changed, run)

    def measure_scratch(self, count: int, segments: int) -> Any:
        return self.zeros(1, np.dtype(np.float64))

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


def _taken(views: Sequence[Any], has: Sequence[bool]) -> tuple[list[Any], Sequence[Any]]:
    """Return the first views, with None for each that was not given, and the other views."""
    left = iter(views)
    first = [next(left) if given else None for given in has]
    return first, [*left]
