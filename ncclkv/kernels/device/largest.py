"""The largest gradients on a device: they are taken from residuals, and added to a sum.

Each digit of the least magnitude that is sent takes two launches.  Three more count, for each
block, how many elements before it are sent, and move the elements in order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np

from ncclkv.kernels.device import kernel_args
from ncclkv.kernels.device.copies import Arrays, DeviceArray
from ncclkv.kernels.device.launch import Launch
from ncclkv.kernels.device.memory import zeros
from ncclkv.kernels.device.sources import (
    TOP_ADD,
    TOP_BEFORE,
    TOP_BLOCKS,
    TOP_COUNT,
    TOP_DIGIT,
    TOP_TAKE,
)

Bounds = Sequence[tuple[int, int]]

_SHIFTS = (20, 10, 0)
"""The lowest bits of the digits of a magnitude."""


class Share(Protocol):
    """A codec that sends a share of a key, as kernels take `ncclkv.compress.topk.TopK`."""

    def kept(self, count: int) -> int: ...

    def ends(self, counts: Iterable[int]) -> list[int]: ...


class Taking:
    """The launches that take the largest gradients of a range; it keeps their arrays alive.

    Parameters
    ----------
    launch : callable
    codec, entries, gradients, residuals, payload
        As of `ncclkv.compress.coding.Coding.taking`.
    """

    def __init__(
        self,
        launch: Launch,
        codec: Share,
        entries: Bounds,
        gradients: DeviceArray,
        residuals: Arrays,
        payload: DeviceArray,
    ) -> None:
        self._launch = launch
        bounds = np.array(entries, np.int64).reshape(-1, 2)
        sizes = bounds[:, 1] - bounds[:, 0]
        counts = sizes.tolist()
        self._planned = kernel_args.plan_launches(
            kernel_args.TAKES, sizes, kernel_args.TAKEN_ELEMENTS, kernel_args.TAKEN_PIECES
        )
        keys = min(len(sizes), kernel_args.TAKEN_PIECES)
        blocks = max((each.blocks for each in self._planned), default=0)
        # Launches follow each other on a stream, so they share this memory.
        scratch = [
            zeros(nbytes, np.dtype(np.uint8))
            for nbytes in (keys * kernel_args.DIGITS * 4, keys * 16, blocks * 16)
        ]
        self._kept = gradients, residuals, payload, scratch
        starts = np.array(codec.ends(counts), np.int64)
        for _, argument, pieces in self._planned:
            count = argument["count"]
            argument["residual"][:count] = [each.data.ptr for each in residuals[pieces]]
            argument["start"][:count] = bounds[pieces, 0]
            argument["size"][:count] = sizes[pieces]
            argument["payload"][:count] = starts[:-1][pieces]
            argument["wanted"][:count] = [*map(codec.kept, counts[pieces])]
            argument["gradients"] = gradients.data.ptr
            argument["bytes"] = payload.data.ptr
            for name, array in zip(("histograms", "least", "counts"), scratch, strict=True):
                argument[name] = array.data.ptr

    def __call__(self, skip: DeviceArray | None, given: None = None) -> None:
        for blocks, argument, _ in self._planned:
            keys = int(argument["count"])
            argument["skip"] = 0 if skip is None else skip.data.ptr
            for shift in _SHIFTS:
                argument["shift"] = shift
                self._launch(TOP_COUNT[shift], blocks, argument)
                self._launch(TOP_DIGIT[shift], keys, argument)
            self._launch(TOP_BLOCKS, blocks, argument)
            self._launch(TOP_BEFORE, keys, argument)
            self._launch(TOP_TAKE, blocks, argument)


class Adding:
    """The launches that add what a sender sent of some keys.

    Parameters
    ----------
    launch : callable
    codec, entries, first
        As of `ncclkv.compress.coding.Coding.adding`.
    """

    def __init__(self, launch: Launch, codec: Share, entries: Bounds, first: int) -> None:
        self._launch = launch
        sizes = [hi - lo for lo, hi in entries]
        kept = np.array([codec.kept(size) for size in sizes], np.int64)
        starts = np.array(codec.ends(sizes), np.int64)
        self._planned = kernel_args.plan_launches(
            kernel_args.ADDS, kept, kernel_args.ADDED_ELEMENTS
        )
        for _, argument, pieces in self._planned:
            count = argument["count"]
            argument["payload"][:count] = starts[:-1][pieces]
            argument["kept"][:count] = kept[pieces]
            argument["shift"][:count] = [lo - first for lo, _ in entries[pieces]]

    def __call__(self, payload: DeviceArray, out: DeviceArray) -> None:
        for blocks, argument, _ in self._planned:
            argument["bytes"] = payload.data.ptr
            argument["out"] = out.data.ptr
            argument["size"] = out.size
            self._launch(TOP_ADD, blocks, argument)
