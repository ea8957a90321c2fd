"""`Coding`: the arithmetic of codecs in one kind of memory; `HostCoding`, in that of the host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from ncclkv.compress.entries import Bounds
from ncclkv.compress.half import Half
from ncclkv.kernels.base import Array, Arrays, Kernels

Encode = Callable[["Array | None"], None]
"""``encode(skip)``: if the int32 in `skip` is not 0 when kernels run, they change nothing."""


class Coding(Protocol):
    """The arithmetic of codecs on ranges of a bucket.

    On a GPU a call returns before its kernels have run, and reads no element of an array.
    """

    def rounding(
        self,
        codec: Half,
        gradients: Array,
        entries: Bounds,
        residuals: Arrays,
        payload: Array,
    ) -> Encode:
        """Return a function that rounds the gradients of a range to 16 bits, at each call.

        Parameters
        ----------
        codec : Half
        gradients : array of float32 or float64, shape (n,)
        entries : sequence of (int, int)
            The elements that are rounded.
        residuals : sequence of array of float32
            The residual of each entry, as for `Half.encode`; none if nothing is kept.
        payload : array of ``codec.wire_dtype``, shape (n,)
        """

    def widen(self, codec: Half, payload: Array, out: Array) -> None:
        """Set `out`, of float32 or float64, to the numbers of a payload or of a sum."""


class HostCoding:
    """`Coding` on NumPy arrays, by the codecs' own arithmetic; a skipped launch is never made."""

    def rounding(
        self,
        codec: Half,
        gradients: Array,
        entries: Bounds,
        residuals: Arrays,
        payload: Array,
    ) -> Encode:
        kept: Sequence[Array | None] = residuals or [None] * len(entries)
        ranges = [slice(*bounds) for bounds in entries]
        parts = [(gradients[part], payload[part]) for part in ranges]

        def run(skip: Array | None) -> None:
            for (given, words), residual in zip(parts, kept, strict=True):
                codec.encode(given, residual, words)

        return run

    def widen(self, codec: Half, payload: Array, out: Array) -> None:
        codec.decode(payload, out)


def coding_of(kernels: Kernels) -> Coding:
    """Return the arithmetic of codecs in the memory of kernels."""
    coding: Coding = kernels.coding or HostCoding()
    return coding
