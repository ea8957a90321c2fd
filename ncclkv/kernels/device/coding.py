"""`DeviceCoding`: the arithmetic of codecs on arrays of a device.

A launch takes the keys of a range together.  Plans are made once, when a range is prepared.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from ncclkv.arrays.dtypes import dtype_name
from ncclkv.kernels.device import kernel_args
from ncclkv.kernels.device.copies import Arrays, DeviceArray, plan_copies
from ncclkv.kernels.device.encoding import Code, Encoding, Rounding
from ncclkv.kernels.device.factoring import Factoring, Factors, Shape, scratch_doubles
from ncclkv.kernels.device.kernel_args import THREADS
from ncclkv.kernels.device.largest import Adding, Share, Taking
from ncclkv.kernels.device.launch import Launch
from ncclkv.kernels.device.memory import zeros
from ncclkv.kernels.device.sources import COPY, DECODE, PACK, UNPACK, WIDEN, KernelSource
from ncclkv.kernels.host.chunks import ranges

MAX_BLOCKS = 4096
"""Maximum number of blocks of a launch without pieces; a thread takes several elements."""

Bounds = Sequence[tuple[int, int]]


class Padding(Protocol):
    """Elements that no key has, as `ncclkv.compress.entries.Padding`."""

    def within(self, start: int, stop: int) -> Iterator[tuple[int, int]]: ...


class DeviceCoding:
    """`ncclkv.compress.coding.Coding` on CuPy arrays.

    Parameters
    ----------
    launch : callable
        Launches a kernel.
    """

    block = sys.maxsize

    def __init__(self, launch: Launch) -> None:
        self._launch = launch
        self._gaps: WeakKeyDictionary[Any, dict[tuple[int, int], _Gaps]] = WeakKeyDictionary()

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
        kernel = WIDEN[dtype_name(payload.dtype), dtype_name(out.dtype)]
        self._launch(kernel, _blocks(out.size), argument)

    def encoding(
        self,
        codec: Code,
        entries: Bounds,
        gradients: DeviceArray,
        residuals: Arrays,
        payload: DeviceArray,
    ) -> Encoding:
        """Return an object that encodes the gradients of a range; as of `Coding.encoding`."""
        return Encoding(self._launch, codec, entries, gradients, residuals, payload)

    def decode(
        self,
        codec: Code,
        payloads: Arrays,
        first: int,
        out: DeviceArray,
        divisor: int | None = None,
    ) -> None:
        """Set `out` to the sum of what the senders sent, with one launch for 256 of them."""
        argument = kernel_args.new(kernel_args.DECODED)
        argument["out"] = out.data.ptr
        argument["size"] = out.size
        argument["first"] = first
        argument["scale"] = _scale(codec, len(payloads), divisor)
        count = first + out.size if out.size else 0
        self._count(DECODE[codec.name], codec, payloads, count, argument)

    def pack(self, codec: Code, payloads: Arrays, count: int, packed: DeviceArray) -> None:
        """Set `packed` to the counts of the first `count` elements, as `Coding.pack`."""
        argument = kernel_args.new(kernel_args.PACKED)
        argument["packed"] = packed.data.ptr
        argument["size"] = count
        kernel = PACK[codec.name, codec.width(len(payloads))]
        self._count(kernel, codec, payloads, count, argument)

    def _count(
        self,
        kernel: KernelSource,
        codec: Code,
        payloads: Arrays,
        count: int,
        argument: NDArray[Any],
    ) -> None:
        """Launch a kernel that counts the codes of `count` elements."""
        blocks = _blocks(-(-count * codec.bits // 8))
        for batch in ranges(len(payloads), kernel_args.PARTS):
            given = argument["payloads"]
            size = batch.stop - batch.start
            given["part"][:size] = [each.data.ptr for each in payloads[batch]]
            given["count"] = size
            given["continues"] = batch.start > 0
            given["ends"] = batch.stop == len(payloads)
            self._launch(kernel, blocks, argument)

    def unpack(
        self,
        codec: Code,
        packed: DeviceArray,
        senders: int,
        out: DeviceArray,
        divisor: int | None = None,
    ) -> None:
        """Set `out` to the sum that packed counts stand for."""
        argument = kernel_args.new(kernel_args.UNPACKED)
        argument["packed"] = packed.data.ptr
        argument["out"] = out.data.ptr
        argument["size"] = out.size
        argument["scale"] = _scale(codec, senders, divisor)
        self._launch(UNPACK[codec.width(senders)], _blocks(out.size), argument)

    def taking(
        self,
        codec: Share,
        entries: Bounds,
        gradients: DeviceArray,
        residuals: Arrays,
        payload: DeviceArray,
    ) -> Taking:
        """Return an object that takes the largest gradients of a range; as of `Coding.taking`."""
        return Taking(self._launch, codec, entries, gradients, residuals, payload)

    def adding(self, codec: Share, entries: Bounds, first: int) -> Adding:
        """Return a function that adds what a sender sent; as of `Coding.adding`."""
        return Adding(self._launch, codec, entries, first)

    def factoring(
        self,
        codec: object,
        factors: Sequence[Factors],
        senders: int,
        average: bool,
        scratch: DeviceArray,
    ) -> Factoring:
        """Return the arithmetic of the matrices of a launch; as of `Coding.factoring`."""
        return Factoring(self._launch, factors, senders, average, scratch)

    def factoring_scratch(self, shapes: Sequence[Shape]) -> DeviceArray:
        """Return memory for the launches of matrices; as of `Coding.factoring_scratch`."""
        return zeros(scratch_doubles(shapes), np.dtype(np.float64))

    def clear(self, padding: Padding, start: int, out: DeviceArray) -> None:
        """Set padding to 0 in `out`, the elements from `start` on, with one launch for 128 gaps."""
        planned = self._gaps.setdefault(padding, {})
        gaps = planned.get((start, out.size))
        if gaps is None:
            gaps = planned[start, out.size] = _Gaps(padding, start, out)
        gaps.clear(self._launch, out)


class _Gaps:
    """The padding of a range, which copies of zeros clear.

    Parameters
    ----------
    padding, start, out
        As of `DeviceCoding.clear`.
    """

    def __init__(self, padding: Padding, start: int, out: DeviceArray) -> None:
        bounds = np.array([*padding.within(start, start + out.size)], np.int64).reshape(-1, 2)
        nbytes = (bounds[:, 1] - bounds[:, 0]) * out.itemsize
        self._begins = (bounds[:, 0] * out.itemsize).astype(np.uint64)
        self._zeros = zeros(int(nbytes.max(initial=0)), np.dtype(np.uint8))
        sources = np.full(len(nbytes), self._zeros.data.ptr, np.uint64)
        self._launches = plan_copies(sources, self._begins, nbytes)

    def clear(self, launch: Launch, out: DeviceArray) -> None:
        """Clear the padding in an array of this length."""
        address = np.uint64(out.data.ptr)
        for blocks, argument, pieces in self._launches:
            argument["destination"][: argument["count"]] = self._begins[pieces] + address
            launch(COPY, blocks, argument)


def _blocks(count: int) -> int:
    """Return the blocks of a launch for as many threads."""
    return min(-(-count // THREADS), MAX_BLOCKS)


def _scale(codec: Code, senders: int, divisor: int | None) -> tuple[float, float, int]:
    """Return the numbers by which a kernel makes values of counts, as `Quantiser.finish`."""
    return -senders * max(codec.levels) / 2, codec.step, divisor or 0
