"""`Coding`: the arithmetic of codecs in one kind of memory; `HostCoding`, in that of the host."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import numpy as np

from ncclkv.compress.base import CountedCodec
from ncclkv.compress.entries import Bounds, Padding, encode_entries
from ncclkv.compress.factoring import Factoring, Factors, HostFactoring
from ncclkv.compress.half import Half
from ncclkv.compress.powersgd import PowerSGD
from ncclkv.compress.topk import TopK
from ncclkv.kernels.base import Array, Arrays, Kernels
from ncclkv.kernels.host.largest import add_largest, parts_of

Encode = Callable[["Array | None"], None]
"""``encode(skip)``: if the int32 in `skip` is not 0 when kernels run, they change nothing."""

BLOCK = 64 * 1024
"""Elements that a host decodes and updates at once: they stay in the cache."""


class Found(Protocol):
    """Counts of an encoding, as far as the host has them; on a GPU those of an earlier launch."""

    @property
    def beyond(self) -> Sequence[int]:
        """The residuals of each entry that stay beyond the bound of the codec."""

    def root_mean_square(self) -> float:
        """Return that of the gradients of the range, or of some of them."""


class Encoding(Protocol):
    """Encodes the gradients of a range, at each call."""

    def __call__(self, skip: Array | None, given: Arrays | None = None) -> Found:
        """Encode; return what was found.

        Parameters
        ----------
        skip : array of int32, shape (1,), or None
            As of `Encode`.
        given : sequence of ndarray, optional
            The gradients of each entry, in place of those of the range; on the host alone.
        """


class Taking(Protocol):
    """Takes the largest gradients of a range, at each call; parameters as of `Encoding`."""

    def __call__(self, skip: Array | None, given: Arrays | None = None) -> None: ...


class Coding(Protocol):
    """The arithmetic of codecs on ranges of a bucket.

    On a GPU a call returns before its kernels have run, and reads no element of an array.

    Attributes
    ----------
    block : int
        Elements that are decoded and updated at once: a multiple of the unit of every codec.
    """

    block: int

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

    def encoding(
        self,
        codec: CountedCodec,
        entries: Bounds,
        gradients: Array,
        residuals: Arrays,
        payload: Array,
    ) -> Encoding:
        """Return an object that encodes the gradients of a range, at each call.

        Parameters
        ----------
        codec : CountedCodec
        entries : sequence of (int, int)
        gradients : array of float32, shape (n,)
            Those of the whole range.
        residuals : sequence of array of float32
            The residual of each entry.
        payload : array of uint8, shape (codec.nbytes(n),)
            Of the whole range.  On a GPU the codes of padding are left as they are.
        """

    def decode(
        self,
        codec: CountedCodec,
        payloads: Arrays,
        first: int,
        out: Array,
        divisor: int | None = None,
    ) -> None:
        """Set `out` to the sum of what the senders sent, of which a divisor makes an average.

        Parameters
        ----------
        codec : CountedCodec
        payloads : sequence of array of uint8
            Those of all senders, at least one.
        first : int
            The elements in the payloads before the first of `out`.
        out : array of float32, shape (n,)
        divisor : int, optional
        """

    def pack(self, codec: CountedCodec, payloads: Arrays, count: int, packed: Array) -> None:
        """Set `packed` to the counts of the first `count` elements, as `CountedCodec.pack_counts`.

        Parameters are those of `decode`.
        """

    def unpack(
        self,
        codec: CountedCodec,
        packed: Array,
        senders: int,
        out: Array,
        divisor: int | None = None,
    ) -> None:
        """Set `out` to the sum that packed counts stand for; parameters as of `decode`."""

    def taking(
        self,
        codec: TopK,
        entries: Bounds,
        gradients: Array,
        residuals: Arrays,
        payload: Array,
    ) -> Taking:
        """Return an object that takes the largest gradients of each key of a range, at each call.

        Parameters are those of `encoding`; the payload has that of each key, one after another.
        """

    def adding(self, codec: TopK, entries: Bounds, first: int) -> Callable[[Array, Array], None]:
        """Return a function ``add(payload, out)``, which adds what a sender sent to `out`.

        Parameters
        ----------
        codec : TopK
        entries : sequence of (int, int)
            The elements of the keys in the payload.
        first : int
            The element at which `out` begins: it may have a part of a key.
        """

    def factoring(
        self,
        codec: PowerSGD,
        factors: Sequence[Factors],
        senders: int,
        average: bool,
        scratch: Array,
    ) -> Factoring:
        """Return the arithmetic of the matrices of a launch.

        Parameters
        ----------
        codec : PowerSGD
        factors : sequence of Factors
        senders : int
        average : bool
            Whether the sums are divided by the count of senders.
        scratch : array
            Memory of `factoring_scratch` for these matrices, or for more; for no other call at the
            same time.
        """

    def factoring_scratch(self, shapes: Sequence[tuple[int, int, int]]) -> Array:
        """Return memory for matrices of some columns of P and Q, rows and columns each."""

    def clear(self, padding: Padding, start: int, out: Array) -> None:
        """Set padding to 0 in `out`, the elements from `start` on."""


class HostCoding:
    """`Coding` on NumPy arrays, by the codecs' own arithmetic; a skipped launch is never made."""

    block = BLOCK

    def __init__(self) -> None:
        self._counts = np.empty(0, np.uint16)

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

    def encoding(
        self,
        codec: CountedCodec,
        entries: Bounds,
        gradients: Array,
        residuals: Arrays,
        payload: Array,
    ) -> Encoding:
        return HostEncoding(codec, entries, gradients, residuals, payload)

    def decode(
        self,
        codec: CountedCodec,
        payloads: Arrays,
        first: int,
        out: Array,
        divisor: int | None = None,
    ) -> None:
        counts = self._scratch(first + out.size)
        codec.count_sum(payloads, counts)
        _finish(codec, counts[first:], len(payloads), out, divisor)

    def pack(self, codec: CountedCodec, payloads: Arrays, count: int, packed: Array) -> None:
        counts = self._scratch(count)
        codec.count_sum(payloads, counts)
        codec.pack_counts(counts, packed, len(payloads))

    def unpack(
        self,
        codec: CountedCodec,
        packed: Array,
        senders: int,
        out: Array,
        divisor: int | None = None,
    ) -> None:
        counts = self._scratch(out.size)
        codec.unpack_counts(packed, counts, senders)
        _finish(codec, counts, senders, out, divisor)

    def taking(
        self,
        codec: TopK,
        entries: Bounds,
        gradients: Array,
        residuals: Arrays,
        payload: Array,
    ) -> Taking:
        own = [gradients[lo:hi] for lo, hi in entries]
        ends = codec.ends(hi - lo for lo, hi in entries)
        parts = [payload[start:stop] for start, stop in pairwise(ends)]

        def take(skip: Array | None, given: Arrays | None = None) -> None:
            arrays = own if given is None else given
            for gradient, residual, part in zip(arrays, residuals, parts, strict=True):
                codec.encode(gradient, residual, part)

        return take

    def adding(self, codec: TopK, entries: Bounds, first: int) -> Callable[[Array, Array], None]:
        ends = codec.ends(hi - lo for lo, hi in entries)

        def add(payload: Array, out: Array) -> None:
            for (start, stop), (lo, hi) in zip(pairwise(ends), entries, strict=True):
                part = payload[start:stop]
                if first <= lo and hi <= first + out.size:
                    add_largest(part, out[lo - first : hi - first])
                else:
                    _add_some(part, lo - first, out)

        return add

    def factoring(
        self,
        codec: PowerSGD,
        factors: Sequence[Factors],
        senders: int,
        average: bool,
        scratch: Array,
    ) -> Factoring:
        return HostFactoring(codec, factors, senders, average)

    def factoring_scratch(self, shapes: Sequence[tuple[int, int, int]]) -> Array:
        return np.empty(0)

    def clear(self, padding: Padding, start: int, out: Array) -> None:
        padding.clear(start, out)

    def _scratch(self, count: int) -> Array:
        """Return memory for counts, which the next call uses again."""
        if self._counts.size < count:
            self._counts = np.empty(count, np.uint16)
        return self._counts[:count]


def _finish(
    codec: CountedCodec, counts: Array, senders: int, out: Array, divisor: int | None
) -> None:
    """Set `out` to the sum that counts stand for, or to an average."""
    codec.finish(counts, senders, out)
    if divisor is not None:
        out /= np.float32(divisor)


def _add_some(payload: Array, shift: int, out: Array) -> None:
    """Add those elements of a payload that lie in `out`, once `shift` is added to their indices."""
    indices, values = parts_of(payload)
    places = indices.astype(np.int64) + shift
    lo, hi = np.searchsorted(places, (0, out.size))
    with np.errstate(all="ignore"):  # as `add_largest`
        out[places[lo:hi]] += values[lo:hi]


@dataclass
class FoundOnHost:
    """`Found` as the host has counted it: of some gradients of a range."""

    beyond: Sequence[int]
    gradients: Arrays

    def root_mean_square(self) -> float:
        squares = sum(float(np.square(each, dtype=np.float64).sum()) for each in self.gradients)
        return math.sqrt(squares / max(1, sum(each.size for each in self.gradients)))


class HostEncoding:
    """`Encoding` on the host; parameters as of `Coding.encoding`."""

    def __init__(
        self,
        codec: CountedCodec,
        entries: Bounds,
        gradients: Array,
        residuals: Arrays,
        payload: Array,
    ) -> None:
        self._codec, self._entries = codec, entries
        self._residuals, self._payload = residuals, payload
        self._gradients = [gradients[lo:hi] for lo, hi in entries]

    def __call__(self, skip: Array | None, given: Arrays | None = None) -> Found:
        gradients = self._gradients if given is None else given
        beyond = encode_entries(
            self._codec, self._entries, gradients, self._residuals, self._payload
        )
        return FoundOnHost(beyond, gradients)


def coding_of(kernels: Kernels) -> Coding:
    """Return the arithmetic of codecs in the memory of kernels."""
    coding: Coding = kernels.coding or HostCoding()
    return coding
