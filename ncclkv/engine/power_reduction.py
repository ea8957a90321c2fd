"""`PowerReduction`: sums over ranks of gradients that are sent as products of narrow matrices."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, lru_cache, partial
from typing import NamedTuple

from ncclkv.comm.base import Collective, Communicator
from ncclkv.comm.programs.decoded import decoded
from ncclkv.comm.programs.low_rank_sum import Copies, Exchange, LowRankSum, Products
from ncclkv.comm.programs.ordered_sum import scratch_of_sums
from ncclkv.comm.types import Buffer
from ncclkv.compress.basis import Basis
from ncclkv.compress.coding import coding_of
from ncclkv.compress.factoring import Factors
from ncclkv.compress.powersgd import PowerSGD, matrix_shape
from ncclkv.engine.bases import Bases
from ncclkv.engine.reduction import Senders, Span
from ncclkv.engine.residuals import Residuals
from ncclkv.table.bucket import Bucket, Entry
from ncclkv.table.registry import Key, KeySpec


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
        self._coding = coding_of(comm.kernels)
        self._places: dict[Key, _Place] = {}
        first = second = 0
        for entry in bucket.entries:
            more, further = self._narrow_sizes(entry.spec)
            place = slice(first, first + more), slice(second, second + further)
            self._places[entry.key] = _Place(*place)
            first, second = first + more, second + further
        self._counts = first, second

    @cached_property
    def _arrays(self) -> _Arrays:
        """The arrays of the bucket."""
        itemsize = self._bucket.dtype.itemsize
        first, directions, second = (
            self._comm.allocate(count * itemsize).view(self._bucket.dtype)
            for count in (self._counts[0], *self._counts)
        )
        keys = [entry.spec.shape for entry in self._bucket.entries if self._pays(entry.spec)]
        shapes = [(self._codec.narrow_shapes(key)[0][0], *matrix_shape(key)) for key in keys]
        return _Arrays(first, directions, second, self._coding.factoring_scratch(shapes))

    def _pays(self, spec: KeySpec) -> bool:
        """Return whether a key is compressed, in this launch or later."""
        return self._codec.pays(spec.shape, self._comm.size)

    def _narrow_sizes(self, spec: KeySpec) -> tuple[int, int]:
        """Return the elements that a key has in the arrays of all P, and of all Q."""
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
        arrays, longest = self._allocated(bases), span.gradients.nbytes
        if arrays is not None:
            longest = max(longest, arrays.first.nbytes, arrays.second.nbytes)
        # A key comes to be due once: nearly all launches find the exchange of the last one.
        of_due = lru_cache(maxsize=1)(partial(self._exchange, span, bases, ranks, op == "avg"))
        low_rank = LowRankSum(
            codec,
            lambda: of_due(tuple(basis.is_due(codec) for basis in bases)),
            span.gradients,
            receive,
            comm.size,
            ranks,
            parts,
            divides=op == "avg",
            skip=lambda: self._residuals.skip,
            kernels=comm.kernels,
        )
        return comm.program(
            low_rank.steps,
            what="a powersgd sum",
            nbytes=span.gradients.nbytes,
            scratch=scratch_of_sums(longest, comm.size),
            sent=partial(low_rank.sent, comm.rank),
            kept=[low_rank, arrays],
        )

    def _allocated(self, bases: Sequence[Basis]) -> _Arrays | None:
        """Allocate what launches need: a lack of memory in the middle of one would end the store.

        Return the arrays of the bucket; None if no key is compressed.
        """
        for basis in bases:
            basis.allocate(self._codec)
        return self._arrays if bases else None

    def _exchange(
        self,
        span: Span,
        bases: Sequence[Basis],
        ranks: frozenset[int],
        average: bool,
        due: Sequence[bool],
    ) -> Exchange:
        """Return the arrays of a launch; `due` says which keys of `bases` are compressed in it."""
        if not any(due):
            return Exchange(bases, [span.gradients])
        arrays, kernels, sends = self._arrays, self._comm.kernels, self._comm.rank in ranks
        whole, idle, factors = list[Buffer](), list[Buffer](), list[Factors]()
        short, places = list[Buffer](), list[Buffer]()
        keys = iter(zip(bases, due, strict=True))
        for entry in span.entries:
            gradients = span.gradients[entry.lo - span.lo : entry.hi - span.lo]
            place = self._places[entry.key]
            if not self._pays(entry.spec):
                short.append(gradients)
                places.append(arrays.first[place.first])
                continue
            basis, is_due = next(keys)
            if is_due:
                factors.append(self._factors(entry, gradients, basis, sends))
            else:
                whole.append(gradients)
                idle += [arrays.first[place.first], arrays.second[place.second]]
        factoring = self._coding.factoring(
            self._codec, factors, len(ranks), average, arrays.scratch
        )
        copies = Copies(kernels, short, places), Copies(kernels, places, short)
        compressed = [basis for basis, is_due in zip(bases, due, strict=True) if is_due]
        begin, end = (self._places[span.entries[index].key] for index in (0, -1))
        first = arrays.first[begin.first.start : end.first.stop]
        second = arrays.second[begin.second.start : end.second.stop]
        products = Products(compressed, factoring, *copies, idle, first, second)
        return Exchange(bases, whole, products)

    def _factors(self, entry: Entry, gradients: Buffer, basis: Basis, sends: bool) -> Factors:
        """Return the matrices of a key."""
        spec, place, arrays = entry.spec, self._places[entry.key], self._arrays
        tall, wide = self._codec.narrow_shapes(spec.shape)
        shape, residual = matrix_shape(spec.shape), None
        if self._codec.keeps_residual and sends:
            residual = self._residuals.of(spec).reshape(shape)
        p, direction = (each[place.first].reshape(tall) for each in arrays[:2])
        q = arrays.second[place.second].reshape(wide)
        return Factors(gradients.reshape(shape), residual, basis.q, basis.spare, p, direction, q)


class _Place(NamedTuple):
    """The elements of a key in the arrays of all P, and of all Q."""

    first: slice
    second: slice


class _Arrays(NamedTuple):
    """The arrays of a bucket.

    Attributes
    ----------
    first : ndarray of float32
        The matrices P, and keys that are too short.
    directions : ndarray of float32
        At the places of all P in `first`, their orthonormal sums.
    second : ndarray of float32
        The matrices Q.
    scratch : ndarray
    """

    first: Buffer
    directions: Buffer
    second: Buffer
    scratch: Buffer
