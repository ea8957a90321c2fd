"""`TopReduction`: sums over ranks of the largest gradients, whose rest stays in residuals."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, partial

from ncclkv.comm.base import Collective, Communicator
from ncclkv.comm.programs.decoded import decoded
from ncclkv.comm.programs.extents import KeyExtents
from ncclkv.comm.programs.top_decoding import TopDecoding
from ncclkv.comm.programs.top_sum import TopSum
from ncclkv.comm.types import Buffer
from ncclkv.comm.wire import Range
from ncclkv.compress.coding import Taking, coding_of
from ncclkv.compress.topk import TopK
from ncclkv.engine.reduction import Senders, Span
from ncclkv.engine.residuals import Residuals
from ncclkv.table.bucket import Bucket, Entry


class TopReduction:
    """The reduction of the keys of a bucket of which each push sends the largest gradients.

    The ranges of a bucket use parts of one payload, as in `CodedReduction`.

    Parameters
    ----------
    comm : Communicator
    codec : TopK
    bucket : Bucket
    residuals : Residuals
    """

    def __init__(
        self, comm: Communicator, codec: TopK, bucket: Bucket, residuals: Residuals
    ) -> None:
        # A GPU reads gradients some time after the launch.
        self.reads_once = comm.blocks
        self._coding = coding_of(comm.kernels)
        self._comm = comm
        self._codec = codec
        self._residuals = residuals
        self._bucket = bucket
        self._extents = KeyExtents(codec, bounds_of(bucket.entries))

    @cached_property
    def _payload(self) -> Buffer:
        """The payloads of all keys of the bucket."""
        return self._comm.allocate(self._extents.codes((0, self._bucket.count))[1])

    def prepare(
        self, span: Span, receive: Buffer, op: str, senders: Senders | None = None
    ) -> Collective:
        comm, codec = self._comm, self._codec
        entries = [entry for entry in span.entries if entry.spec.size]
        extents = KeyExtents(codec, bounds_of(entries, span.lo))
        payload = self._payload[slice(*self._extents.codes((span.lo, span.hi)))]
        ranks = frozenset(range(comm.size)) if senders is None else senders
        nodes = comm.nodes if span.node_shared else None
        encode = None
        if comm.rank in ranks:
            owed = [self._residuals.of(entry.spec) for entry in entries]
            take = self._coding.taking(codec, extents.entries, span.gradients, owed, payload)
            encode = partial(self._encode, take, span, entries)
        parts = decoded(span.hi - span.lo, 1, span.to, comm.size, nodes)
        divisor = len(ranks) if op == "avg" else None
        result = TopDecoding(extents, len(ranks), receive, divisor, comm.kernels)
        top = TopSum(encode, payload, result, ranks, parts)
        return comm.program(
            top.steps,
            what="a topk sum",
            nbytes=payload.nbytes,
            scratch=top.scratch(comm.rank),
            sent=partial(top.sent, comm.rank),
            kept=[top],
        )

    def _encode(self, take: Taking, span: Span, entries: Sequence[Entry]) -> None:
        """Move the largest gradients of each key to the payload that this rank sends."""
        given = None if span.given is None else [span.gradient(each) for each in entries]
        take(self._residuals.skip, given)


def bounds_of(entries: Sequence[Entry], start: int = 0) -> list[Range]:
    """Return the elements of the keys that have any, counted from the element `start`."""
    return [(entry.lo - start, entry.hi - start) for entry in entries if entry.spec.size]
