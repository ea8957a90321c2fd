"""Sums of the arrays of one key in one process, each encoded by itself: one class for each form.

A sum is prepared once for the same arrays.  On a GPU all launches follow each other on one stream,
so the keys of a bucket may use the same payloads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from ncclkv.arrays.dtypes import named
from ncclkv.comm.base import Communicator
from ncclkv.comm.programs.decoding import Decoding
from ncclkv.comm.programs.extents import KeyExtents
from ncclkv.comm.programs.low_rank_sum import Copies
from ncclkv.comm.programs.top_decoding import TopDecoding
from ncclkv.compress.base import CountedCodec
from ncclkv.compress.coding import Encode, coding_of
from ncclkv.compress.entries import Padding
from ncclkv.compress.factoring import Factors
from ncclkv.compress.half import Half
from ncclkv.compress.powersgd import PowerSGD, matrix_shape
from ncclkv.compress.topk import TopK
from ncclkv.engine.bases import Bases
from ncclkv.engine.combined_found import CombinedFound
from ncclkv.engine.saturation import Saturation
from ncclkv.kernels.base import Array, Arrays
from ncclkv.table.bucket import Bucket, Entry
from ncclkv.table.registry import Key

ResidualOf = Callable[[int], Array]
"""Returns the residual of an array, by its position in the push."""

_FLOAT32 = np.dtype(np.float32)


class ArraySum(Protocol):
    """The sums of the arrays of a bucket's keys."""

    def prepare(self, entry: Entry, arrays: Arrays, residual_of: ResidualOf, out: Array) -> Encode:
        """Return a function that encodes each array of a key and decodes their sum, at each call.

        Parameters
        ----------
        entry : Entry
        arrays : sequence of array, shape (n,)
            `out` may be one of them.
        residual_of : callable
        out : array, shape (n,)
            Receives the sum; n is above 0.
        """


class CountedArrays:
    """Sums of codes that are counted."""

    def __init__(
        self, comm: Communicator, codec: CountedCodec, bucket: Bucket, saturation: Saturation
    ) -> None:
        self._codec = codec
        self._saturation = saturation
        self._payloads = _Payloads(comm, codec.nbytes(_longest(bucket)))
        self._coding = coding_of(comm.kernels)

    def prepare(self, entry: Entry, arrays: Arrays, residual_of: ResidualOf, out: Array) -> Encode:
        codec, coding, count = self._codec, self._coding, out.size
        payloads = self._payloads.of(len(arrays), codec.nbytes(count))
        encodings = [
            coding.encoding(codec, [(0, count)], array, [residual_of(index)], payload)
            for index, (array, payload) in enumerate(zip(arrays, payloads, strict=True))
        ]

        whole = 0, count
        decoding = Decoding(codec, len(arrays), Padding([whole], count), out, coding=coding)

        def add(skip: Array | None) -> None:
            found = [encode(skip) for encode in encodings]
            most = CombinedFound(found, 1, lambda _: max(int(each.beyond[0]) for each in found))
            self._saturation.note(codec, [entry], most)
            decoding.write(payloads, whole, None)

        return add


class HalfArrays:
    """Sums of arrays of 16-bit floats."""

    def __init__(self, comm: Communicator, codec: Half, bucket: Bucket) -> None:
        self._codec = codec
        self._kernels = comm.kernels
        # The division of an average is over ranks, not over the arrays of one.
        self._op = "sum" if bucket.op == "avg" else bucket.op
        self._payloads = _Payloads(comm, codec.nbytes(_longest(bucket)))
        self._coding = coding_of(comm.kernels)

    def prepare(self, entry: Entry, arrays: Arrays, residual_of: ResidualOf, out: Array) -> Encode:
        codec, coding, count = self._codec, self._coding, out.size
        dtype = named(codec.wire_dtype, codec.name)
        payloads = [
            each.view(dtype) for each in self._payloads.of(len(arrays), codec.nbytes(count))
        ]
        roundings = [
            coding.rounding(
                codec,
                array,
                [(0, count)],
                [residual_of(index)] if codec.keeps_residual else [],
                payload,
            )
            for index, (array, payload) in enumerate(zip(arrays, payloads, strict=True))
        ]

        def add(skip: Array | None) -> None:
            for encode in roundings:
                encode(skip)
            self._kernels.reduce(payloads, payloads[0], self._op)
            coding.widen(codec, payloads[0], out)

        return add


class TopArrays:
    """Sums of the largest elements of each array.

    Each key has payloads of its own: on a GPU a launch that is skipped adds those of the last one,
    whose indices must be those of the key.
    """

    def __init__(self, comm: Communicator, codec: TopK) -> None:
        self._comm = comm
        self._codec = codec
        self._payloads: dict[Key, _Payloads] = {}
        self._coding = coding_of(comm.kernels)

    def prepare(self, entry: Entry, arrays: Arrays, residual_of: ResidualOf, out: Array) -> Encode:
        codec, whole, nbytes = self._codec, (0, out.size), self._codec.nbytes(out.size)
        of_key = self._payloads.setdefault(entry.key, _Payloads(self._comm, nbytes))
        payloads = of_key.of(len(arrays), nbytes)
        takings = [
            self._coding.taking(codec, [whole], array, [residual_of(index)], payload)
            for index, (array, payload) in enumerate(zip(arrays, payloads, strict=True))
        ]
        extents, kernels = KeyExtents(codec, [whole]), self._comm.kernels
        decoding = TopDecoding(extents, len(arrays), out, kernels=kernels)

        def add(skip: Array | None) -> None:
            for take in takings:
                take(skip)
            decoding.write(payloads, whole, None)

        return add


class LowRankArrays:
    """Sums of matrices by products of narrow ones, with the bits of as many ranks."""

    def __init__(self, comm: Communicator, codec: PowerSGD, bases: Bases) -> None:
        self._comm = comm
        self._codec = codec
        self._bases = bases
        self._coding = coding_of(comm.kernels)

    def prepare(self, entry: Entry, arrays: Arrays, residual_of: ResidualOf, out: Array) -> Encode:
        codec, kernels, basis = self._codec, self._comm.kernels, self._bases.of(entry.spec)
        basis.allocate(codec)
        factors = self._factors(entry, arrays, residual_of)
        rank, rows, columns = *factors[0].p.shape, factors[0].q.shape[1]
        scratch = self._coding.factoring_scratch([(rank, rows, columns)] * len(arrays))
        factoring = self._coding.factoring(codec, factors, len(arrays), False, scratch)
        start = Copies(
            kernels, [basis.q] * (len(arrays) - 1), [_flat(each.start) for each in factors[1:]]
        )
        sum_p, sum_q = (
            _Sum(self._comm, [_flat(each) for each in parts])
            for parts in ([each.p for each in factors], [each.q for each in factors])
        )

        def add(skip: Array | None) -> None:
            due = basis.is_due(codec)
            basis.launches += 1
            if not due:
                kernels.reduce(arrays, out, "sum")
                return
            basis.begin(codec)
            start()
            factoring.project(skip)
            sum_p()
            factoring.project_back(skip)
            sum_q()
            factoring.finish(skip)
            kernels.pack(arrays[0], out)

        return add

    def _factors(self, entry: Entry, arrays: Arrays, residual_of: ResidualOf) -> list[Factors]:
        """Return the matrices of each array, as a rank has those of its own."""
        codec, basis = self._codec, self._bases.of(entry.spec)
        shape = matrix_shape(entry.spec.shape)
        tall, wide = codec.narrow_shapes(entry.spec.shape)
        found = []
        for index, array in enumerate(arrays):
            residual = residual_of(index).reshape(shape) if codec.keeps_residual else None
            # On a GPU one launch renews all of them, so they share no memory.
            start = self._matrix(wide) if index else basis.q
            p, direction, q = self._matrix(tall), self._matrix(tall), self._matrix(wide)
            matrix = array.reshape(shape)
            found.append(Factors(matrix, residual, start, basis.spare, p, direction, q))
        return found

    def _matrix(self, shape: tuple[int, int]) -> Array:
        """Return a new matrix."""
        nbytes = shape[0] * shape[1] * _FLOAT32.itemsize
        return self._comm.allocate(nbytes).view(_FLOAT32).reshape(shape)


class _Sum:
    """Sums some arrays in their order, and sets all of them to the sum, as ranks do.

    Parameters
    ----------
    comm : Communicator
    parts : sequence of array
    """

    def __init__(self, comm: Communicator, parts: Arrays) -> None:
        self._kernels = comm.kernels
        self._parts = parts
        self._spread = Copies(comm.kernels, [parts[0]] * (len(parts) - 1), parts[1:])

    def __call__(self) -> None:
        self._kernels.reduce(self._parts, self._parts[0], "sum")
        self._spread()


class _Payloads:
    """The payload of each array of a key, which the next key uses again.

    Parameters
    ----------
    comm : Communicator
        Allocates them.
    nbytes : int
        Bytes of the longest payload.
    """

    def __init__(self, comm: Communicator, nbytes: int) -> None:
        self._comm = comm
        self._nbytes = nbytes
        self._arrays: list[Array] = []

    def of(self, senders: int, nbytes: int) -> list[Array]:
        """Return the first bytes of as many payloads."""
        while len(self._arrays) < senders:
            self._arrays.append(self._comm.allocate(self._nbytes))
        return [array[:nbytes] for array in self._arrays[:senders]]


def _longest(bucket: Bucket) -> int:
    """Return the elements of the longest key of a bucket."""
    return max(entry.spec.size for entry in bucket.entries)


def _flat(matrix: Array) -> Array:
    """Return a matrix as a flat array of the same memory."""
    return matrix.reshape(-1)
