"""Gradients that are rounded or encoded on a device: launches that are planned once.

A launch takes up to 128 keys of a range.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol, overload

import numpy as np
from numpy.typing import NDArray

from ncclkv.arrays.dtypes import dtype_name
from ncclkv.kernels.device import kernel_args
from ncclkv.kernels.device.copies import Arrays, DeviceArray
from ncclkv.kernels.device.launch import Launch
from ncclkv.kernels.device.memory import Mirror, zeros
from ncclkv.kernels.device.sources import ENCODE, NARROW

Bounds = Sequence[tuple[int, int]]


class Code(Protocol):
    """A codec of few bits, as kernels take `ncclkv.compress.quantiser.Quantiser`."""

    @property
    def name(self) -> str: ...

    @property
    def bits(self) -> int: ...

    @property
    def levels(self) -> Sequence[int]: ...

    threshold: float
    bound: float
    step: float

    def width(self, senders: int) -> int: ...


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


class Encoding:
    """The launches that encode the gradients of a range; it keeps their arrays alive.

    Parameters
    ----------
    launch : callable
    codec, entries, gradients, residuals, payload
        As of `ncclkv.compress.coding.Coding.encoding`.

    Attributes
    ----------
    beyond : Beyond
        The residuals of each entry that were beyond the bound in the last launch that the host has
        the counts of.
    """

    def __init__(
        self,
        launch: Launch,
        codec: Code,
        entries: Bounds,
        gradients: DeviceArray,
        residuals: Arrays,
        payload: DeviceArray,
    ) -> None:
        self._launch = launch
        self._kept = gradients, residuals, payload
        self._kernel = ENCODE[codec.name]
        bounds = np.array(entries, np.int64).reshape(-1, 2)
        sizes = bounds[:, 1] - bounds[:, 0]
        self._count = int(sizes.sum())
        first = kernel_args.first_blocks(sizes, kernel_args.ENCODED_ELEMENTS)
        # Not of `FOUND`: CuPy has no structures.
        found = zeros(int(first[-1]) * 2, np.dtype(np.float64))
        self._mirror = Mirror(found)
        self._found = self._mirror.host.view(kernel_args.FOUND)
        self.beyond = Beyond(self._found["beyond"], first)
        self._planned = kernel_args.plan_launches(
            kernel_args.ENCODINGS, sizes, kernel_args.ENCODED_ELEMENTS
        )
        for _, argument, pieces in self._planned:
            count = argument["count"]
            argument["residual"][:count] = [each.data.ptr for each in residuals[pieces]]
            argument["start"][:count] = bounds[pieces, 0]
            argument["size"][:count] = sizes[pieces]
            argument["gradients"] = gradients.data.ptr
            argument["payload"] = payload.data.ptr
            argument["found"] = (
                found.data.ptr + int(first[pieces.start]) * kernel_args.FOUND.itemsize
            )
            argument["threshold"], argument["bound"] = codec.threshold, codec.bound

    def __call__(self, skip: DeviceArray | None, given: None = None) -> Encoding:
        for blocks, argument, _ in self._planned:
            argument["skip"] = 0 if skip is None else skip.data.ptr
            self._launch(self._kernel, blocks, argument)
        self._mirror.update()
        return self

    def root_mean_square(self) -> float:
        """Return that of the gradients of the same launch as `beyond`."""
        return math.sqrt(float(self._found["squares"].sum()) / max(self._count, 1))


class Beyond(Sequence[int]):
    """Counts by entry, which are sums of the counts of blocks.

    Parameters
    ----------
    counts : ndarray
        Those of all blocks; a device may write them while the host reads.
    first : ndarray of int64, shape (n + 1,)
        The first block of each entry, and the number of all blocks.

    Examples
    --------
    >>> [*Beyond(np.array([1, 2, 4]), np.array([0, 2, 2, 3]))]
    [3, 0, 4]
    """

    def __init__(self, counts: NDArray[np.uint64], first: NDArray[np.int64]) -> None:
        self._counts = counts
        self._first = first

    def __len__(self) -> int:
        return len(self._first) - 1

    @overload
    def __getitem__(self, index: int) -> int: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[int]: ...

    def __getitem__(self, index: int | slice) -> int | Sequence[int]:
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(len(self)))]
        lo, hi = self._first[range(len(self))[index]], self._first[range(1, len(self) + 1)[index]]
        return int(self._counts[lo:hi].sum())
