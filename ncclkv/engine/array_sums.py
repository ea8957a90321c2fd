"""Sums of the arrays of one key in one process, each encoded by itself: one class for each form."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from ncclkv.arrays.dtypes import named
from ncclkv.compress.base import CountedCodec
from ncclkv.compress.basis import Basis
from ncclkv.compress.coding import BLOCK, FoundOnHost, HostCoding
from ncclkv.compress.half import Half
from ncclkv.compress.powersgd import PowerSGD, matrix_shape
from ncclkv.compress.topk import TopK
from ncclkv.engine.bases import Bases
from ncclkv.engine.saturation import Saturation
from ncclkv.kernels.base import Array, Arrays, Kernels
from ncclkv.table.bucket import Entry

ResidualOf = Callable[[int], Array]
"""Returns the residual of an array, by its position in the push."""


class ArraySum(Protocol):
    """The sum of the arrays of a key."""

    def add(self, entry: Entry, arrays: Arrays, residual_of: ResidualOf, out: Array) -> None:
        """Encode each array of a key, and decode their sum.

        Parameters
        ----------
        entry : Entry
        arrays : sequence of ndarray, shape (n,)
            `out` may be one of them.
        residual_of : callable
        out : ndarray, shape (n,)
            Receives the sum; n is above 0.
        """


class CountedArrays:
    """Sums of codes that are counted."""

    def __init__(self, codec: CountedCodec, saturation: Saturation) -> None:
        self._codec = codec
        self._saturation = saturation
        self._payloads = _Memory(np.dtype(np.uint8))
        self._coding = HostCoding()

    def add(self, entry: Entry, arrays: Arrays, residual_of: ResidualOf, out: Array) -> None:
        codec, count = self._codec, out.size
        payloads = self._payloads.arrays(len(arrays), codec.nbytes(count))
        beyond = [
            codec.encode(array, residual_of(index), payload)
            for index, (array, payload) in enumerate(zip(arrays, payloads, strict=True))
        ]
        self._saturation.note(codec, [entry], FoundOnHost([max(beyond)], arrays[:1]))
        for lo in range(0, count, BLOCK):
            hi = min(lo + BLOCK, count)
            start, stop = codec.nbytes(lo), codec.nbytes(hi)
            parts = [payload[start:stop] for payload in payloads]
            self._coding.decode(codec, parts, 0, out[lo:hi])


class HalfArrays:
    """Sums of arrays of 16-bit floats."""

    def __init__(self, codec: Half, kernels: Kernels, op: str) -> None:
        self._codec = codec
        self._kernels = kernels
        self._op = op
        self._payloads = _Memory(named(codec.wire_dtype, codec.name))

    def add(self, entry: Entry, arrays: Arrays, residual_of: ResidualOf, out: Array) -> None:
        payloads = self._payloads.arrays(len(arrays), out.size)
        keeps = self._codec.keeps_residual
        for index, (array, payload) in enumerate(zip(arrays, payloads, strict=True)):
            self._codec.encode(array, residual_of(index) if keeps else None, payload)
        # The division of an average is over ranks, not over the arrays of one.
        op = "sum" if self._op == "avg" else self._op
        self._kernels.reduce(payloads, payloads[0], op)
        self._codec.decode(payloads[0], out)


class TopArrays:
    """Sums of the largest elements of each array."""

    def __init__(self, codec: TopK) -> None:
        self._codec = codec
        self._payloads = _Memory(np.dtype(np.uint8))

    def add(self, entry: Entry, arrays: Arrays, residual_of: ResidualOf, out: Array) -> None:
        payloads = self._payloads.arrays(len(arrays), self._codec.nbytes(out.size))
        for index, (array, payload) in enumerate(zip(arrays, payloads, strict=True)):
            self._codec.encode(array, residual_of(index), payload)
        self._codec.merge(payloads, out)


class LowRankArrays:
    """Sums of matrices by products of narrow ones, with the bits of as many ranks."""

    def __init__(self, codec: PowerSGD, kernels: Kernels, bases: Bases) -> None:
        self._codec = codec
        self._kernels = kernels
        self._bases = bases

    def add(self, entry: Entry, arrays: Arrays, residual_of: ResidualOf, out: Array) -> None:
        codec, basis = self._codec, self._bases.of(entry.spec)
        due = basis.is_due(codec)
        basis.launches += 1
        if not due:
            self._kernels.reduce(arrays, out, "sum")
            return
        shape = matrix_shape(entry.spec.shape)
        matrices = [array.reshape(shape) for array in arrays]
        residuals: list[Array | None] = [None] * len(arrays)
        if codec.keeps_residual:
            residuals = [residual_of(index).reshape(shape) for index in range(len(arrays))]
        basis.allocate(codec)
        basis.begin(codec)
        p, q = self._factors(entry, matrices, residuals, basis)
        for matrix, residual in zip(matrices, residuals, strict=True):
            codec.finish(matrix, p, q, residual, len(arrays))
        basis.q[...] = q
        out[...] = matrices[0].reshape(-1)

    def _factors(
        self,
        entry: Entry,
        matrices: Arrays,
        residuals: Sequence[Array | None],
        basis: Basis,
    ) -> tuple[Array, Array]:
        """Return P and the sum of all Q, once each matrix has its residual added."""
        codec = self._codec
        tall, wide = codec.narrow_shapes(entry.spec.shape)
        every_p = np.empty((len(matrices), *tall), np.float32)
        every_q = np.empty((len(matrices), *wide), np.float32)
        codec.renew(basis.q, basis.spare)
        for matrix, residual, p in zip(matrices, residuals, every_p, strict=True):
            codec.project(matrix, residual, basis.q, p)
        self._kernels.reduce([*every_p], every_p[0], "sum")
        for matrix, q in zip(matrices, every_q, strict=True):
            p = every_p[0].copy()  # each sender makes the same sum orthonormal
            codec.project_back(matrix, p, q)
        self._kernels.reduce([*every_q], every_q[0], "sum")
        return p, every_q[0]


class _Memory:
    """Arrays of one dtype, which the next key uses again."""

    def __init__(self, dtype: np.dtype[np.generic]) -> None:
        self._dtype = dtype
        self._arrays: list[Array] = []

    def arrays(self, senders: int, count: int) -> list[Array]:
        """Return an array of `count` elements for each sender."""
        while len(self._arrays) < senders:
            self._arrays.append(np.empty(0, self._dtype))
        for index in range(senders):
            if self._arrays[index].size < count:
                self._arrays[index] = np.empty(count, self._dtype)
        return [array[:count] for array in self._arrays[:senders]]
