"""`HalfReduction`: sums over ranks of gradients that are rounded to 16 bits."""

from __future__ import annotations

from functools import cached_property, partial

from ncclkv.arrays.dtypes import named
from ncclkv.comm.base import Collective, Communicator
from ncclkv.comm.types import Apply, Buffer, Work
from ncclkv.compress.coding import Encode, coding_of
from ncclkv.compress.half import Half
from ncclkv.engine.reduction import Senders, Span
from ncclkv.engine.residuals import Residuals
from ncclkv.table.bucket import Bucket


class HalfReduction:
    """The reduction of the keys of a bucket whose gradients are sent in 16 bits.

    Its sums are those of 16-bit arrays.  The sum of a node travels as float32, so nodes of one rank
    alone send fewer bytes.  The ranges of a bucket use parts of the same arrays, as in
    `CodedReduction`.

    Parameters
    ----------
    comm : Communicator
    codec : Half
    bucket : Bucket
    residuals : Residuals
        Of what the rounding loses, if the codec keeps it.
    """

    reads_once = False

    def __init__(
        self, comm: Communicator, codec: Half, bucket: Bucket, residuals: Residuals
    ) -> None:
        self._comm = comm
        self._codec = codec
        self._coding = coding_of(comm.kernels)
        self._bucket = bucket
        self._residuals = residuals
        self._dtype = named(codec.wire_dtype, codec.name)

    @cached_property
    def _arrays(self) -> tuple[Buffer, Buffer]:
        """The gradients and the sums of the bucket, in 16 bits."""
        nbytes = self._bucket.count * self._dtype.itemsize
        first, second = (self._comm.allocate(nbytes).view(self._dtype) for _ in range(2))
        return first, second

    def prepare(
        self, span: Span, receive: Buffer, op: str, senders: Senders | None = None
    ) -> Collective:
        comm = self._comm
        payload, total = (array[span.lo : span.hi] for array in self._arrays)
        divisor = None
        if senders is not None and op == "avg":
            op, divisor = "sum", len(senders)
        inner = comm.reduction(payload, total, op, to=span.to, sharded_update=span.node_shared)
        rests = senders is not None and comm.rank not in senders
        encode = self._rounding(span, payload, rests=rests)

        def start(apply: Apply | None) -> Work:
            encode(self._residuals.skip)
            comm.keep_alive(encode)
            return inner.launch(partial(self._decode, total, receive, divisor, apply))

        return Collective(start, lambda: inner.wire_bytes)

    def _rounding(self, span: Span, payload: Buffer, *, rests: bool) -> Encode:
        """Return the function that rounds the gradients of a span, at each launch.

        The residual of a rank that rests stays as it is.
        """
        entries, residuals = [(0, span.hi - span.lo)], []
        if self._codec.keeps_residual and not rests:
            entries = [(entry.lo - span.lo, entry.hi - span.lo) for entry in span.entries]
            residuals = [self._residuals.of(entry.spec) for entry in span.entries]
        return self._coding.rounding(self._codec, span.gradients, entries, residuals, payload)

    def _decode(
        self,
        total: Buffer,
        receive: Buffer,
        divisor: int | None,
        apply: Apply | None,
        lo: int,
        hi: int,
    ) -> None:
        """Write elements ``[lo, hi)`` of the sum, and update them."""
        out = receive[lo:hi]
        self._coding.widen(self._codec, total[lo:hi], out)
        if divisor is not None:
            self._comm.kernels.divide(out, divisor)
        if apply is not None:
            apply(lo, hi)
