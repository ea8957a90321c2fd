"""`ArrayReduction`: sums in one process, in which each array of a key is encoded by itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from ncclkv.comm.base import Collective, Communicator
from ncclkv.comm.transport import Steps
from ncclkv.comm.types import Apply, Buffer
from ncclkv.comm.wire import Wire
from ncclkv.compress.base import Codec
from ncclkv.compress.coding import Encode
from ncclkv.engine.array_sums import ArraySum
from ncclkv.engine.reduction import Senders, Span
from ncclkv.engine.residuals import Residuals
from ncclkv.kernels.base import Array, Arrays, Kernels
from ncclkv.table.bucket import Entry
from ncclkv.table.registry import Key


class StagedArrays:
    """Copies of the arrays of keys that were pushed with several, until their launch.

    A flush may look for NaN before it encodes, so the arrays outlive their push.  The copies of a
    key stay at their addresses: what a launch was prepared for reads those of the next push.
    """

    def __init__(self) -> None:
        self._copies: dict[Key, list[Array]] = {}
        self._counts: dict[Key, int] = {}

    def stage(self, key: Key, arrays: Arrays, kernels: Kernels) -> Arrays:
        """Copy the arrays of a key, of any strides and from any GPU; return the copies, flat."""
        copies = self._copies.setdefault(key, [])
        for array in arrays[len(copies) :]:
            copies.append(kernels.zeros(array.size, array.dtype))
        for array, copy in zip(arrays, copies, strict=False):
            kernels.pack(array, copy)
        self._counts[key] = len(arrays)
        return copies[: len(arrays)]

    def take(self, key: Key) -> Sequence[Array]:
        """Return the copies of a key, flat; none if it was pushed with one array."""
        return self._copies.get(key, [])[: self._counts.pop(key, 0)]

    def forget(self, key: Key) -> None:
        """Free the copies of a key that is not encoded any more, or by another type of codec."""
        self._copies.pop(key, None)
        self._counts.pop(key, None)

    def drop(self, keys: Iterable[Key]) -> None:
        """Forget the arrays of keys, which are not launched or were pushed anew."""
        for key in keys:
            self._counts.pop(key, None)


class ArrayReduction:
    """The reduction of the keys of a bucket in one process that have one codec.

    Parameters
    ----------
    comm : Communicator
    codec : Codec
    sums : ArraySum
    residuals : Residuals
        Of each array, by its position in the push.
    staged : StagedArrays
    """

    reads_once = False

    def __init__(
        self,
        comm: Communicator,
        codec: Codec,
        sums: ArraySum,
        residuals: Residuals,
        staged: StagedArrays,
    ) -> None:
        self._comm = comm
        self._codec = codec
        self._sums = sums
        self._residuals = residuals
        self._staged = staged

    def prepare(
        self, span: Span, receive: Buffer, op: str, senders: Senders | None = None
    ) -> Collective:
        sums = _SumsOfSpan(self._sums, span, receive, self._residuals)
        steps = partial(self._steps, sums, receive.size)
        return self._comm.program(steps, what=f"a {self._codec.name} sum", kept=[sums])

    def _steps(self, sums: _SumsOfSpan, count: int, wire: Wire, apply: Apply | None) -> Steps:
        """Make the sums of the keys of a span, which need no other rank."""
        for entry in sums.entries:
            sums.of(entry, self._staged.take(entry.key))(self._residuals.skip)
        if apply is not None:
            apply(0, count)
        yield from ()


class _SumsOfSpan:
    """The sums of the keys of a span, each prepared at its first launch with as many arrays.

    Parameters
    ----------
    sums : ArraySum
    span : Span
    receive : array
    residuals : Residuals

    Attributes
    ----------
    entries : list of Entry
        The keys that have elements.
    """

    def __init__(self, sums: ArraySum, span: Span, receive: Buffer, residuals: Residuals) -> None:
        self._sums = sums
        self._span = span
        self._receive = receive
        self._residuals = residuals
        self._prepared: dict[tuple[Key, int], Encode] = {}
        self.entries = [entry for entry in span.entries if entry.spec.size]

    def of(self, entry: Entry, staged: Arrays) -> Encode:
        """Return the sum of the arrays of a push, or of its only one, which is not staged."""
        prepared = self._prepared.get((entry.key, len(staged)))
        if prepared is None:
            within = slice(entry.lo - self._span.lo, entry.hi - self._span.lo)
            arrays = staged or [self._span.gradients[within]]
            residual_of = partial(self._residuals.of, entry.spec)
            prepared = self._sums.prepare(entry, arrays, residual_of, self._receive[within])
            self._prepared[entry.key, len(staged)] = prepared
        return prepared
