"""`PowerReduction`: sums over ranks of gradients that are sent as products of narrow matrices."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, lru_cache, partial

import numpy as np

from ncclkv.comm.base import Collective, Communicator
from ncclkv.comm.programs.decoded import decoded
from ncclkv.comm.programs.low_rank_sum import Exchange, Factors, LowRankSum
from ncclkv.comm.types import Buffer
from ncclkv.compress.basis import Basis
from ncclkv.compress.powersgd import PowerSGD, matrix_shape
from ncclkv.engine.bases import Bases
from ncclkv.engine.reduction import Senders, Span
from ncclkv.engine.residuals import Residuals
from ncclkv.table.bucket import Bucket, Entry
from ncclkv.table.registry import Key, KeySpec

_NOTHING = np.empty(0, np.float32)


class PowerReduction:
    """The reduction of a bucket's keys that powersgd compresses, and of those too short for it.

    The ranges of a bucket use parts of the same arrays, as in `CodedReduction`.

    Parameters
    ----------
    comm : Communicator
    codec : PowerSGD
    bucket : Bucket
    residuals : Residuals
    bases : Bases
    """

    reads_once = False

    def __init__(
        self,
        comm: Communicator,
        codec: PowerSGD,
        bucket: Bucket,
        residuals: Residuals,
        bases: Bases,
    ) -> None:
        self._comm = comm
        self._codec = codec
        self._bucket = bucket
        self._residuals = residuals
        self._bases = bases
        self._places: dict[Key, tuple[slice, slice]] = {}
        first = second = 0
        for entry in bucket.entries:
            more, further = self._narrow_sizes(entry.spec)
            self._places[entry.key] = slice(first, first + more), slice(second, second + further)
            first, second = first + more, second + further
        self._counts = first, second

    @cached_property
    def _arrays(self) -> tuple[Buffer, Buffer]:
        """The matrices P and keys that are too short, and the matrices Q, of the bucket."""
        itemsize = self._bucket.dtype.itemsize
        first, second = (
            self._comm.allocate(count * itemsize).view(self._bucket.dtype) for count in self._counts
        )
        return first, second

    def _pays(self, spec: KeySpec) -> bool:
        """Return whether a key is compressed, in this launch or later."""
        return self._codec.pays(spec.shape, self._comm.size)

    def _narrow_sizes(self, spec: KeySpec) -> tuple[int, int]:
        """Return the elements that a key has in each of the two arrays."""
        if not self._pays(spec):
            return spec.size, 0
        (rank, rows), (_, columns) = self._codec.narrow_shapes(spec.shape)
        return rank * rows, rank * columns

    def prepare(
        self, span: Span, receive: Buffer, op: str, senders: Senders | None = None
    ) -> Collective:
        comm, codec = self._comm, self._codec
        ranks = frozenset(range(comm.size)) if senders is None else senders
        nodes = comm.nodes if span.node_shared else None
        parts = decoded(span.hi - span.lo, 1, span.to, comm.size, nodes)
        bases = [self._bases.of(entry.spec) for entry in span.entries if self._pays(entry.spec)]
        # Allocated here: a lack of memory in the middle of a launch would end the store.
        arrays = self._arrays if bases else (_NOTHING, _NOTHING)
        # A key comes to be due once: nearly all launches find the exchange of the last one.
        of_due = lru_cache(maxsize=1)(partial(self._exchange, span, bases, arrays))

        def exchange() -> Exchange:
            return of_due(tuple(basis.is_due(codec) for basis in bases))

        low_rank = LowRankSum(
            codec, exchange, span.gradients, receive, comm.size, ranks, parts, op == "avg"
        )
        return comm.program(
            low_rank.steps,
            what="a powersgd sum",
            nbytes=span.gradients.nbytes,
            sent=partial(low_rank.sent, comm.rank),
        )

    def _exchange(
        self,
        span: Span,
        bases: Sequence[Basis],
        arrays: tuple[Buffer, Buffer],
        due: Sequence[bool],
    ) -> Exchange:
        """Return the arrays of a launch; `due` says which keys of `bases` are compressed in it."""
        if not any(due):
            return Exchange(bases, [span.gradients], [], [], _NOTHING, _NOTHING)
        whole, short, factors = [], [], []
        keys = iter(zip(bases, due, strict=True))
        for entry in span.entries:
            gradients = span.gradients[entry.lo - span.lo : entry.hi - span.lo]
            if not self._pays(entry.spec):
                short.append((gradients, arrays[0][self._places[entry.key][0]]))
                continue
            basis, is_due = next(keys)
            if is_due:
                factors.append(self._factors(entry, gradients, basis, arrays))
            else:
                whole.append(gradients)
                # Else sums of what an earlier launch has left would grow from launch to launch.
                for array, place in zip(arrays, self._places[entry.key], strict=True):
                    array[place] = 0
        of_span = zip(*(self._places[entry.key] for entry in span.entries), strict=True)
        first, second = (
            array[places[0].start : places[-1].stop]
            for array, places in zip(arrays, of_span, strict=True)
        )
        return Exchange(bases, whole, short, factors, first, second)

    def _factors(
        self, entry: Entry, gradients: Buffer, basis: Basis, arrays: tuple[Buffer, Buffer]
    ) -> Factors:
        """Return the matrices of a key."""
        spec, (of_p, of_q) = entry.spec, self._places[entry.key]
        tall, wide = self._codec.narrow_shapes(spec.shape)
        shape, residual = matrix_shape(spec.shape), None
        if self._codec.keeps_residual:
            residual = self._residuals.of(spec).reshape(shape)
        first, second = arrays
        p, q = first[of_p].reshape(tall), second[of_q].reshape(wide)
        return Factors(gradients.reshape(shape), residual, basis, p, q)
