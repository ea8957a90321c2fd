"""`DeviceCoding`: the arithmetic of codecs on arrays of a device.

A launch takes the keys of a range together.  Plans are made once, when a range is prepared.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ncclkv.arrays.dtypes import dtype_name
from ncclkv.kernels.device import kernel_args
from ncclkv.kernels.device.copies import Arrays, DeviceArray
from ncclkv.kernels.device.kernel_args import THREADS
from ncclkv.kernels.device.launch import Launch
from ncclkv.kernels.device.sources import NARROW, WIDEN

MAX_BLOCKS = 4096
"""Maximum number of blocks of ``widen``; a thread takes several elements."""

Bounds = Sequence[tuple[int, int]]


class DeviceCoding:
    """`ncclkv.compress.coding.Coding` on CuPy arrays.

    Parameters
    ----------
    launch : callable
        Launches a kernel.
    """

    def __init__(self, launch: Launch) -> None:
        self._launch = launch

    def rounding(
        self,
        codec: object,
        gradients: DeviceArray,
        entries: Bounds,
        residuals: Arrays,
        payload: DeviceArray,
    ) -> Rounding:
        """Return a function that rounds the gradients of a range; as of `Coding.rounding`."""
        return Rounding(self._launch, gradients, entries, residuals, payload)

    def widen(self, codec: object, payload: DeviceArray, out: DeviceArray) -> None:
        """Set `out` to the numbers of a payload, by one kernel."""
        argument = kernel_args.new(kernel_args.WIDENING)
        argument["words"] = payload.data.ptr
        argument["out"] = out.data.ptr
        argument["size"] = out.size
        blocks = min(-(-out.size // THREADS), MAX_BLOCKS)
        self._launch(WIDEN[dtype_name(payload.dtype), dtype_name(out.dtype)], blocks, argument)


class Rounding:
    """The launches that round the gradients of a range; it keeps their arrays alive.

    Parameters
    ----------
    launch : callable
    gradients, entries, residuals, payload
        As of `ncclkv.compress.coding.Coding.rounding`.
    """

    def __init__(
        self,
        launch: Launch,
        gradients: DeviceArray,
        entries: Bounds,
        residuals: Arrays,
        payload: DeviceArray,
    ) -> None:
        self._launch = launch
        self._kept = gradients, residuals, payload
        self._kernel = NARROW[dtype_name(gradients.dtype), dtype_name(payload.dtype)]
        bounds = np.array(entries, np.int64).reshape(-1, 2)
        sizes = bounds[:, 1] - bounds[:, 0]
        planned = kernel_args.plan_launches(
            kernel_args.ROUNDINGS, sizes, kernel_args.ROUNDED_ELEMENTS
        )
        for _, argument, pieces in planned:
            count = argument["count"]
            argument["start"][:count] = bounds[pieces, 0]
            argument["size"][:count] = sizes[pieces]
            if residuals:
                argument["residual"][:count] = [each.data.ptr for each in residuals[pieces]]
            argument["gradients"] = gradients.data.ptr
            argument["words"] = payload.data.ptr
        self._planned = planned

    def __call__(self, skip: DeviceArray | None) -> None:
        for blocks, argument, _ in self._planned:
            argument["skip"] = 0 if skip is None else skip.data.ptr
            self._launch(self._kernel, blocks, argument)
