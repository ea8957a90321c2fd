"""`TopReduction`: sums over ranks of the largest gradients, whose rest stays in residuals."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, partial
from itertools import accumulate

from ncclkv.comm.base import Collective, Communicator
from ncclkv.comm.programs.decoded import decoded
from ncclkv.comm.programs.top_sum import TopSum
from ncclkv.comm.types import Buffer
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
        sizes = [codec.nbytes(entry.spec.size) for entry in bucket.entries]
        self._starts = dict(zip(bucket.entry_indices, accumulate(sizes, initial=0), strict=False))
        self._nbytes = sum(sizes)

    @cached_property
    def _payload(self) -> Buffer:
        """The payloads of all keys of the bucket."""
        return self._comm.allocate(self._nbytes)

    def prepare(
        self, span: Span, receive: Buffer, op: str, senders: Senders | None = None
    ) -> Collective:
        comm, codec = self._comm, self._codec
        entries = [entry for entry in span.entries if entry.spec.size]
        bounds = [(entry.lo - span.lo, entry.hi - span.lo) for entry in entries]
        start = self._starts[entries[0].key]
        payload = self._payload[start : start + sum(codec.nbytes(hi - lo) for lo, hi in bounds)]
        ranks = frozenset(range(comm.size)) if senders is None else senders
        nodes = comm.nodes if span.node_shared else None
        encode = None
        if comm.rank in ranks:
            owed = [self._residuals.of(entry.spec) for entry in entries]
            take = self._coding.taking(codec, bounds, span.gradients, owed, payload)
            encode = partial(self._encode, take, span, entries)
        parts = decoded(span.hi - span.lo, 1, span.to, comm.size, nodes)
        divides = op == "avg"
        top = TopSum(
            codec, encode, payload, bounds, receive, ranks, parts, divides, comm.rank, comm.kernels
        )
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
