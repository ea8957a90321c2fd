"""`CodedReduction`: sums over ranks of encoded gradients, whose rest stays in residuals."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial

import numpy as np

from ncclkv.comm.base import Collective, Communicator
from ncclkv.comm.programs.coded_sum import CodedSum, form_of
from ncclkv.comm.types import Buffer
from ncclkv.compress.base import CountedCodec
from ncclkv.compress.coding import coding_of
from ncclkv.compress.entries import Bounds, Padding
from ncclkv.engine.reduction import Senders, Span
from ncclkv.engine.residuals import Residuals
from ncclkv.engine.saturation import Saturation
from ncclkv.table.bucket import Bucket

_NOTHING = np.empty(0, np.uint8)


class CodedReduction:
    """The reduction of the keys of a bucket that have one codec.

    A launch encodes, and so changes residuals: a flush that is skipped launches nothing.  The
    ranges of a bucket use parts of one payload: those in flight at once have no key in common.

    Parameters
    ----------
    comm : Communicator
    codec : CountedCodec
    bucket : Bucket
    residuals : Residuals
    saturation : Saturation
    """

    def __init__(
        self,
        comm: Communicator,
        codec: CountedCodec,
        bucket: Bucket,
        residuals: Residuals,
        saturation: Saturation,
    ) -> None:
        self.codec = codec
        # A GPU reads gradients some time after the launch.
        self.reads_once = comm.blocks
        self._coding = coding_of(comm.kernels)
        self._comm = comm
        self._bucket = bucket
        self._residuals = residuals
        self._saturation = saturation

    @cached_property
    def _payload(self) -> Buffer:
        """The codes of the bucket."""
        return self._comm.allocate(self.codec.nbytes(self._bucket.count))

    @cached_property
    def _packed(self) -> Buffer:
        """The packed counts of the bucket."""
        return self._comm.allocate(self._packed_at(self._bucket.count))

    def _packed_at(self, element: int) -> int:
        """Return the position of the packed counts from an element of the bucket on."""
        return self.codec.packed_nbytes(element, self._comm.size)

    def prepare(
        self, span: Span, receive: Buffer, op: str, senders: Senders | None = None
    ) -> Collective:
        comm, codec, count = self._comm, self.codec, span.hi - span.lo
        bounds = [(entry.lo - span.lo, entry.hi - span.lo) for entry in span.entries]
        ranks = frozenset(range(comm.size)) if senders is None else senders
        nodes = comm.nodes if span.node_shared else None
        form = form_of(codec, count, ranks, span.to, comm.size, nodes)
        start = codec.nbytes(span.lo)
        payload, packed = self._payload[start : start + codec.nbytes(count)], _NOTHING
        if form.two_steps:
            lo, hi = form.decoded[comm.rank]
            start = self._packed_at(span.lo + lo)
            packed = self._packed[start : start + form.packed(hi - lo)]
        encode = self._encoding(span, bounds, payload) if comm.rank in ranks else None
        padding = Padding(bounds, count)
        coded = CodedSum(
            codec, encode, payload, padding, receive, form, op == "avg", packed, self._coding
        )
        return comm.program(
            coded.steps,
            what=f"a {codec.name} sum",
            nbytes=payload.nbytes,
            scratch=form.scratch(comm.rank),
            sent=partial(form.sent, comm.rank),
            kept=[coded],
        )

    def _encoding(self, span: Span, bounds: Bounds, payload: Buffer) -> Callable[[], None]:
        """Return the function that encodes the gradients of a span, at each launch."""
        entries = span.entries
        residuals = [self._residuals.of(entry.spec) for entry in entries]
        encoding = self._coding.encoding(self.codec, bounds, span.gradients, residuals, payload)

        def encode() -> None:
            # Not by default: to find each of a hundred arrays takes as long as some launches.
            given = None if span.given is None else [span.gradient(each) for each in entries]
            found = encoding(self._residuals.skip, given)
            self._saturation.note(self.codec, entries, found)

        return encode
