"""`ArrayReduction`: sums in one process, in which each array of a key is encoded by itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

import numpy as np

from ncclkv.comm.base import Collective, Communicator
from ncclkv.comm.transport import Steps
from ncclkv.comm.types import Apply, Buffer
from ncclkv.comm.wire import Wire
from ncclkv.compress.base import Codec
from ncclkv.compress.entries import Padding
from ncclkv.engine.array_sums import ArraySum
from ncclkv.engine.reduction import Senders, Span
from ncclkv.engine.residuals import Residuals
from ncclkv.kernels.base import Array, Arrays
from ncclkv.table.registry import Key


class StagedArrays:
    """Copies of the arrays of keys that were pushed with several, until their launch.

    A flush may look for NaN before it encodes, so the arrays outlive their push.
    """

    def __init__(self) -> None:
        self._copies: dict[Key, list[Array]] = {}
        self._counts: dict[Key, int] = {}

    def stage(self, key: Key, arrays: Arrays) -> None:
        """Copy the arrays of a key, of any strides."""
        copies = self._copies.setdefault(key, [])
        for index, array in enumerate(arrays):
            if index == len(copies):
                copies.append(np.empty(array.size, array.dtype))
            np.copyto(copies[index].reshape(array.shape), array)
        self._counts[key] = len(arrays)

    def take(self, key: Key) -> Sequence[Array]:
        """Return the copies of a key, flat; none if it was pushed with one array."""
        return self._copies.get(key, [])[: self._counts.pop(key, 0)]

    def forget(self, key: Key) -> None:
        """Free the copies of a key that is not encoded any more."""
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
        bounds = [(entry.lo - span.lo, entry.hi - span.lo) for entry in span.entries]
        padding = Padding(bounds, span.hi - span.lo)
        steps = partial(self._steps, span, receive, padding)
        return self._comm.program(steps, what=f"a {self._codec.name} sum")

    def _steps(
        self,
        span: Span,
        receive: Buffer,
        padding: Padding,
        wire: Wire,
        apply: Apply | None,
    ) -> Steps:
        """Make the sums of the keys of a span, which need no other rank."""
        for entry in span.entries:
            if not entry.spec.size:
                continue
            within = slice(entry.lo - span.lo, entry.hi - span.lo)
            arrays = self._staged.take(entry.key) or [span.gradients[within]]
            residual_of = partial(self._residuals.of, entry.spec)
            self._sums.add(entry, arrays, residual_of, receive[within])
        padding.clear(0, receive)
        if apply is not None:
            apply(0, receive.size)
        yield from ()
