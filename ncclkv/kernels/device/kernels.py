"""`ncclkv.kernels.base.Kernels` on CuPy arrays."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from ncclkv.arrays import as_gpu_out, as_gpu_value
from ncclkv.arrays.cupy import left
from ncclkv.arrays.dtypes import dtype_name
from ncclkv.kernels.base import Measured, Segments
from ncclkv.kernels.device import kernel_args
from ncclkv.kernels.device.checksums import checksums
from ncclkv.kernels.device.coding import DeviceCoding
from ncclkv.kernels.device.copies import Arrays, CopyTable, DeviceArray, plan_copies
from ncclkv.kernels.device.kernel_args import THREADS
from ncclkv.kernels.device.launch import Launch, launch
from ncclkv.kernels.device.measure import Measurements
from ncclkv.kernels.device.memory import assign, copy, empty, zeros
from ncclkv.kernels.device.peer_copies import Transfer, apart, copy_across, transfer
from ncclkv.kernels.device.sources import COMBINE, COPY, NONFINITE, UPDATE
from ncclkv.kernels.device.staging import Staging, download
from ncclkv.kernels.host.chunks import ranges, working_dtype

MAX_BLOCKS = 4096
"""Maximum number of blocks of ``combine`` and ``nonfinite``; a thread takes several elements."""

_LOADED_BYTES = 16
"""Number of bytes that a thread of ``nonfinite`` loads at once."""


class DeviceKernels:
    """`ncclkv.kernels.base.Kernels` on CuPy arrays, for one thread.

    Users' arrays may also be in host memory, or on other devices of the process.  Scratch memory
    for such arrays, and for arrays not in C order, is allocated from CuPy's pools.

    Parameters
    ----------
    launch : callable
        Launches a kernel.
    transfer : callable, optional
        Copies from device to device.
    """

    def __init__(self, launch: Launch = launch, transfer: Transfer = transfer) -> None:
        self._launch = launch
        self._transfer = transfer
        self._staging = Staging()
        measurements = Measurements(launch)
        self.measure = measurements.add
        self.measure_scratch = measurements.scratch
        self.coding = DeviceCoding(launch)
        self._launches: WeakKeyDictionary[Segments, list[kernel_args.PlannedLaunch]] = (
            WeakKeyDictionary()
        )

    value = staticmethod(as_gpu_value)
    out = staticmethod(as_gpu_out)
    zeros = staticmethod(zeros)
    empty = staticmethod(empty)
    left = staticmethod(left)
    copy = staticmethod(copy)

    def not_in_c(self, dtype: np.dtype[Any], op: str) -> str:
        """Return an empty text: the device makes all sums."""
        return ""

    def fill(self, array: DeviceArray, value: float) -> None:
        """Set every element of `array` to a number, by a kernel."""
        array.fill(value)

    def pack(self, value: DeviceArray, slot: DeviceArray) -> None:
        """Copy `value` (any shape and strides) into the flat `slot` of the same size and dtype.

        After the call `value` may be changed; on a device, by later work of the current stream
        there.
        """
        if isinstance(value, np.ndarray):
            self._staging.upload(value, slot)
        else:
            self._copy(value, slot.reshape(value.shape))

    def unpack(self, slot: DeviceArray, out: DeviceArray) -> None:
        """Copy `slot` into `out` of the same size, casting as ``astype`` does.

        `slot` is flat, or the value of a key without a bucket, in C order.  `out` may have any
        shape and strides.  An `out` in host memory is written when the call returns.  The call
        waits for the current stream without a deadline, so wait before for any collective that the
        stream waits for.
        """
        if isinstance(out, np.ndarray):
            download(slot, out)
        else:
            self._copy(slot.reshape(out.shape), out)

    def _copy(self, source: DeviceArray, destination: DeviceArray) -> None:
        """Copy between arrays of one shape, of any strides, dtypes and devices."""
        if apart(source, destination):
            copy_across(source, destination, self._transfer)
        else:
            assign(source, destination)

    def pack_all(self, values: Arrays, slots: Arrays, table: CopyTable | None = None) -> CopyTable:
        """Pack each value into its slot, with one launch for all that are in C order.

        Parameters
        ----------
        values, slots : sequence of ndarray
            As for `pack`.
        table : CopyTable, optional
            Result of the last call for these slots.

        Returns
        -------
        CopyTable
            For the next call: `table` itself if it still matches.
        """
        table = self._copy_all(values, slots, table)
        for index in table.alone:
            self.pack(values[index], slots[index])
        return table

    def unpack_all(self, slots: Arrays, outs: Arrays, table: CopyTable | None = None) -> CopyTable:
        """Unpack each slot into its out, with one launch for all of its dtype and in C order.

        Parameters and result as of `pack_all`.
        """
        table = self._copy_all(slots, outs, table)
        for index in table.alone:
            self.unpack(slots[index], outs[index])
        return table

    def _copy_all(
        self, sources: Arrays, destinations: Arrays, table: CopyTable | None
    ) -> CopyTable:
        """Copy the pairs that one launch can copy; `CopyTable.alone` has the other pairs."""
        if table is None or not table.matches(sources, destinations):
            table = CopyTable(sources, destinations)
        for blocks, argument, _ in table.launches:
            self._launch(COPY, blocks, argument)
        return table

    def combine(self, values: Arrays, slot: DeviceArray, op: str) -> None:
        """Reduce one rank's `values` of a key (any strides, one shape) into the flat `slot`.

        ``avg`` adds here: its division is over ranks.
        """
        parts = [self._flat(value, slot) for value in values]
        self._fold(parts, slot, "sum" if op == "avg" else op, divisor=0)

    def reduce(self, parts: Arrays, out: DeviceArray, op: str) -> None:
        """Reduce the flat `parts`, in their order, into `out`, which may be one of them.

        ``avg`` divides by ``len(parts)`` (integers toward zero).
        """
        self._fold(parts, out, op, divisor=len(parts) if op == "avg" else 0)

    def divide(self, array: DeviceArray, count: int) -> None:
        """Divide the flat sum of `count` arrays by their number, in place; integers toward zero."""
        self._fold([array], array, "avg", divisor=count)

    def _flat(self, value: DeviceArray, slot: DeviceArray) -> DeviceArray:
        """Return the value on the device of `slot` and in C order: itself, or a copy."""
        import cupy

        if isinstance(value, np.ndarray) or apart(value, slot):
            part = cupy.empty_like(slot)
            self.pack(value, part)
            return part
        return cupy.ascontiguousarray(value)

    def _fold(self, parts: Arrays, out: DeviceArray, op: str, divisor: int) -> None:
        """Combine `parts` in order; a partial result between two launches is not rounded."""
        name = dtype_name(out.dtype)
        program = COMBINE[name, "sum" if op == "avg" and out.dtype.kind not in "iu" else op]
        partial = _partial(parts, out, op) if len(parts) > kernel_args.PARTS else None
        of_block = THREADS * kernel_args.COMBINED_TOGETHER
        blocks = min(-(-out.size // of_block), MAX_BLOCKS)
        for batch in ranges(len(parts), kernel_args.PARTS):
            argument = kernel_args.new(kernel_args.COMBINATION)
            count = batch.stop - batch.start
            argument["part"][:count] = [part.data.ptr for part in parts[batch]]
            argument["partial"] = 0 if partial is None else partial.data.ptr
            argument["out"] = out.data.ptr
            argument["size"] = out.size
            argument["divisor"] = divisor
            argument["count"] = count
            argument["continues"] = batch.start > 0
            argument["ends"] = batch.stop == len(parts)
            self._launch(program, blocks, argument)

    def find_nonfinite(self, array: DeviceArray, flag: DeviceArray) -> None:
        """Set ``flag[0]`` to 1 if a number of `array` is NaN or infinite; does not block."""
        if array.dtype.kind in "biu":
            return
        if array.dtype.kind == "c":
            array = array.view(array.real.dtype)
        argument = kernel_args.new(kernel_args.SEARCH)
        argument["words"] = array.data.ptr
        argument["flag"] = flag.data.ptr
        argument["size"] = array.size
        blocks = min(-(-array.nbytes // (_LOADED_BYTES * THREADS)), MAX_BLOCKS)
        self._launch(NONFINITE[dtype_name(array.dtype)], blocks, argument)

    def assign(self, total: DeviceArray, weights: DeviceArray, skip: DeviceArray) -> None:
        """Copy `total` into `weights`, unless ``skip[0]`` is not 0 when the kernel runs."""
        source, target = (np.array([x.data.ptr], np.uint64) for x in (total, weights))
        for blocks, argument, _ in plan_copies(source, target, np.array([total.nbytes])):
            argument["skip"] = skip.data.ptr
            self._launch(COPY, blocks, argument)

    def update(
        self,
        program: str,
        weights: DeviceArray,
        gradients: DeviceArray,
        states: Arrays,
        scalars: DeviceArray,
        segments: Segments,
        skip: DeviceArray | None = None,
        master: DeviceArray | None = None,
        measured: Measured | None = None,
    ) -> None:
        """Update `weights` and `states` by a program, with one launch for 128 segments.

        Parameters as of `ncclkv.kernels.base.Kernels.update`.  A captured launch keeps the
        addresses, and reads scalars, `skip` and `measured` when it runs.
        """
        kernel = UPDATE[program, len(states), dtype_name(weights.dtype)]
        launches = self._launches.get(segments)
        if launches is None:
            launches = self._launches[segments] = kernel_args.plan_updates(segments)
        sums: DeviceArray = None if measured is None else measured.sums
        total: DeviceArray = None if measured is None else measured.total
        for blocks, argument, pieces in launches:
            argument["weights"] = weights.data.ptr
            argument["gradients"] = gradients.data.ptr
            argument["states"][: len(states)] = [state.data.ptr for state in states]
            argument["scalars"] = _row(scalars, pieces.start)
            argument["skip"] = 0 if skip is None else skip.data.ptr
            argument["master"] = 0 if master is None else master.data.ptr
            argument["sums"] = 0 if sums is None else _row(sums, pieces.start)
            argument["total"] = 0 if total is None else total.data.ptr
            self._launch(kernel, blocks, argument)

    def checksums(self, arrays: Arrays) -> DeviceArray:
        """Compute the uint64 checksum of each array on the current stream, into a new GPU array."""
        return checksums(arrays, self._launch, self._staging.upload, self._transfer)


def _partial(parts: Arrays, out: DeviceArray, op: str) -> DeviceArray:
    """Return memory for results between launches: `out`, unless a later launch reads it as a part.

    A capture cannot allocate memory, so `out` itself is used if it can hold these results.
    """
    working = working_dtype(out.dtype, op)
    later = {part.data.ptr for part in parts[kernel_args.PARTS :]}
    if working == out.dtype and out.data.ptr not in later:
        return out
    return empty((out.size,), working)


def _row(array: DeviceArray, number: int) -> int:
    """Return the address of a row of an array."""
    address: int = array.data.ptr + number * array.strides[0]
    return address
