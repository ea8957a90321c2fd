"""Sums of squares of a bucket's segments, in the order of `ncclkv.kernels.host.measure`."""

from __future__ import annotations

from weakref import WeakKeyDictionary

import numpy as np

from ncclkv.arrays.dtypes import dtype_name
from ncclkv.kernels.base import Measured, Segments
from ncclkv.kernels.device import kernel_args
from ncclkv.kernels.device.copies import Arrays, DeviceArray
from ncclkv.kernels.device.launch import Launch
from ncclkv.kernels.device.memory import empty
from ncclkv.kernels.device.sources import FOLD, NORMS
from ncclkv.kernels.host.measure import BLOCK
from ncclkv.kernels.programs import PROGRAMS

_MOST = max(program.norms.sums for program in PROGRAMS.values() if program.norms is not None)
_PER_BLOCK = kernel_args.MEASURED_ELEMENTS // BLOCK

_Planned = tuple[kernel_args.PlannedLaunch, kernel_args.PlannedLaunch]


class Measurements:
    """Launches the kernels that sum squares, with cached arguments.

    Parameters
    ----------
    launch : callable
        Launches a kernel.
    """

    def __init__(self, launch: Launch) -> None:
        self._launch = launch
        self._planned: WeakKeyDictionary[Segments, list[_Planned]] = WeakKeyDictionary()

    @staticmethod
    def scratch(count: int, segments: int) -> DeviceArray:
        """Return memory for the sums of blocks; parameters as of `Kernels.measure_scratch`."""
        blocks = count // kernel_args.MEASURED_ELEMENTS + segments
        return empty((blocks * _PER_BLOCK * _MOST,), np.dtype(np.float64))

    def add(
        self,
        program: str,
        weights: DeviceArray,
        gradients: DeviceArray,
        states: Arrays,
        scalars: DeviceArray,
        segments: Segments,
        sums: DeviceArray,
        scratch: DeviceArray,
        skip: DeviceArray | None = None,
        master: DeviceArray | None = None,
        measured: Measured | None = None,
    ) -> None:
        """Add sums of squares to `sums`, with two launches for 128 segments.

        Parameters as of `ncclkv.kernels.base.Kernels.measure`.
        """
        kernel = NORMS[program, len(states), dtype_name(weights.dtype)]
        planned = self._planned.get(segments)
        if planned is None:
            planned = self._planned[segments] = _plan(segments)
        total: DeviceArray = None if measured is None else measured.total
        flag = 0 if skip is None else skip.data.ptr
        for (blocks, argument, pieces), (count, folds, _) in planned:
            argument["weights"] = weights.data.ptr
            argument["gradients"] = gradients.data.ptr
            argument["states"][: len(states)] = [state.data.ptr for state in states]
            argument["master"] = 0 if master is None else master.data.ptr
            argument["scalars"] = scalars.data.ptr + pieces.start * scalars.strides[0]
            argument["skip"] = folds["skip"] = flag
            argument["total"] = 0 if total is None else total.data.ptr
            argument["partial"] = folds["partial"] = scratch.data.ptr
            folds["sums"] = sums.data.ptr + pieces.start * sums.strides[0]
            folds["norms"] = sums.shape[1]
            self._launch(kernel, blocks, argument)
            self._launch(FOLD, count, folds)


def _plan(segments: Segments) -> list[_Planned]:
    """Plan the launches that measure segments, without the addresses of a call."""
    bounds, planned = segments.bounds, []
    sizes = np.diff(bounds)
    launches = kernel_args.plan_launches(kernel_args.MEASURES, sizes, kernel_args.MEASURED_ELEMENTS)
    for launch in launches:
        argument, pieces = launch.argument, launch.pieces
        count = int(argument["count"])
        argument["start"][: count + 1] = bounds[pieces.start : pieces.stop + 1][: count + 1]
        folds = kernel_args.new(kernel_args.FOLDS)
        folds["size"][:count] = sizes[pieces]
        folds["first"] = argument["first"]
        folds["count"] = count
        planned.append((launch, kernel_args.PlannedLaunch(count, folds, pieces)))
    return planned
