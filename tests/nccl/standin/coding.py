"""The arithmetic of codecs on the stand-in's arrays: the host's, in the order of the stream."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ncclkv.compress.base import CountedCodec
from ncclkv.compress.coding import Encode, HostCoding, Taking
from ncclkv.compress.entries import Bounds, Padding
from ncclkv.compress.factoring import Factoring, Factors, HostFactoring
from ncclkv.compress.half import Half
from ncclkv.compress.powersgd import PowerSGD
from ncclkv.compress.topk import TopK
from tests.nccl.standin.streams import RecordingStreams

_HOST = HostCoding()


class StandInCoding:
    """A `ncclkv.compress.coding.Coding` for arrays of a stand-in's device.

    A `HostCoding` keeps counts between calls, so each queued call that counts has one of its own.
    """

    block = sys.maxsize

    def __init__(self, streams: RecordingStreams) -> None:
        self.streams = streams

    def rounding(
        self,
        codec: Half,
        gradients: Any,
        entries: Bounds,
        residuals: Sequence[Any],
        payload: Any,
    ) -> Encode:
        def encode(gradients: Any, payload: Any, *residuals: Any) -> None:
            _HOST.rounding(codec, gradients, entries, residuals, payload)(None)

        def run(skip: Any) -> None:
            self.unless(skip, f"{codec.name} of", [gradients], [payload, *residuals], encode)

        return run

    def widen(self, codec: Half, payload: Any, out: Any) -> None:
        def run(payload: Any, out: Any) -> None:
            _HOST.widen(codec, payload, out)

        self.streams.work("widen", [payload], [out], run)

    def encoding(
        self,
        codec: CountedCodec,
        entries: Bounds,
        gradients: Any,
        residuals: Sequence[Any],
        payload: Any,
    ) -> StandInEncoding:
        return StandInEncoding(self, codec, entries, gradients, residuals, payload)

    def decode(
        self,
        codec: CountedCodec,
        payloads: Sequence[Any],
        first: int,
        out: Any,
        divisor: int | None = None,
    ) -> None:
        def run(*views: Any) -> None:
            HostCoding().decode(codec, views[:-1], first, views[-1], divisor)

        self.streams.work("decode", payloads, [out], run)

    def pack(self, codec: CountedCodec, payloads: Sequence[Any], count: int, packed: Any) -> None:
        def run(*views: Any) -> None:
            HostCoding().pack(codec, views[:-1], count, views[-1])

        self.streams.work("pack counts", payloads, [packed], run)

    def unpack(
        self,
        codec: CountedCodec,
        packed: Any,
        senders: int,
        out: Any,
        divisor: int | None = None,
    ) -> None:
        def run(packed: Any, out: Any) -> None:
            HostCoding().unpack(codec, packed, senders, out, divisor)

        self.streams.work("unpack counts", [packed], [out], run)

    def taking(
        self,
        codec: TopK,
        entries: Bounds,
        gradients: Any,
        residuals: Sequence[Any],
        payload: Any,
    ) -> Taking:
        def take(gradients: Any, payload: Any, *residuals: Any) -> None:
            _HOST.taking(codec, entries, gradients, residuals, payload)(None)

        def run(skip: Any, given: Sequence[Any] | None = None) -> None:
            assert given is None, "a device takes the gradients of the range"
            self.unless(skip, "topk of", [gradients], [payload, *residuals], take)

        return run

    def adding(self, codec: TopK, entries: Bounds, first: int) -> Callable[[Any, Any], None]:
        add = _HOST.adding(codec, entries, first)

        def run(payload: Any, out: Any) -> None:
            self.streams.work("add the largest", [payload], [out], add)

        return run

    def factoring(
        self,
        codec: PowerSGD,
        factors: Sequence[Factors],
        senders: int,
        average: bool,
        scratch: Any,
    ) -> Factoring:
        return StandInFactoring(self, codec, factors, senders, average, scratch)

    def factoring_scratch(self, shapes: Sequence[tuple[int, int, int]]) -> Any:
        return self.streams.allocate(len(shapes))

    def clear(self, padding: Padding, start: int, out: Any) -> None:
        def run(out: Any) -> None:
            padding.clear(start, out)

        self.streams.work("clear padding", [], [out], run)

    def unless(
        self, skip: Any, what: str, reads: Sequence[Any], writes: Sequence[Any], run: Any
    ) -> None:
        """Queue ``run(*reads, *writes)``, which a flag in memory may skip."""
        flags = [] if skip is None else [skip]
        count = len(flags)  # not the arrays: recorded work must not keep them alive

        def skipped(*views: Any) -> None:
            if not any(flag[0] for flag in views[:count]):
                run(*views[count:])

        self.streams.work(what, [*flags, *reads], writes, skipped)


class StandInEncoding:
    """Encodes a range, and copies what is found to the host, where it is read without a wait."""

    def __init__(
        self,
        coding: StandInCoding,
        codec: CountedCodec,
        entries: Bounds,
        gradients: Any,
        residuals: Sequence[Any],
        payload: Any,
    ) -> None:
        self._coding = coding
        self._codec, self._entries = codec, entries
        self._given = gradients, residuals, payload
        self._found = coding.streams.allocate(8 * (len(entries) + 1)).view(np.float64)
        self._host = np.zeros(len(entries) + 1)

    def __call__(self, skip: Any, given: Sequence[Any] | None = None) -> StandInEncoding:
        assert given is None, "a device encodes the gradients of the range"
        (gradients, residuals, payload), streams = self._given, self._coding.streams
        codec, entries, host = self._codec, self._entries, self._host

        def run(gradients: Any, payload: Any, found: Any, *residuals: Any) -> None:
            encoding = _HOST.encoding(codec, entries, gradients, residuals, payload)
            counted = encoding(None)
            found[:-1], found[-1] = counted.beyond, counted.root_mean_square()

        written = [payload, self._found, *residuals]
        self._coding.unless(skip, f"{codec.name} of", [gradients], written, run)
        streams.work("a copy of counts", [self._found], (), lambda view: np.copyto(host, view))
        return self

    @property
    def beyond(self) -> Sequence[int]:
        """A view: each look finds the counts of the last launch that has run."""
        found: Any = self._host[:-1]
        return found

    def root_mean_square(self) -> float:
        return float(self._host[-1])


class StandInFactoring:
    """The arithmetic of matrices; each part writes scratch memory, too, which other sums share."""

    def __init__(
        self,
        coding: StandInCoding,
        codec: PowerSGD,
        factors: Sequence[Factors],
        senders: int,
        average: bool,
        scratch: Any,
    ) -> None:
        self._coding, self._factors, self._scratch = coding, factors, scratch
        self._made = codec, senders, average

    def project(self, skip: Any) -> None:
        self._run("project", skip, ["residual", "spare"], ["matrix", "start", "p"])

    def project_back(self, skip: Any) -> None:
        self._run("project_back", skip, ["matrix", "p"], ["direction", "q"])

    def finish(self, skip: Any) -> None:
        self._run("finish", skip, ["direction", "q"], ["matrix", "residual", "start"])

    def _run(self, part: str, skip: Any, reads: Sequence[str], writes: Sequence[str]) -> None:
        """Queue a part, which gets arrays by the names of their fields."""
        places = [
            [(index, name) for index, each in enumerate(self._factors) for name in names
             if getattr(each, name) is not None]
            for names in (reads, writes)
        ]  # fmt: skip
        read, written = ([getattr(self._factors[i], name) for i, name in each] for each in places)
        (codec, senders, average), count = self._made, len(self._factors)

        def run(*views: Any) -> None:
            given = [dict.fromkeys(Factors._fields) for _ in range(count)]
            for (index, name), view in zip([*places[0], *places[1]], views[:-1], strict=True):
                given[index][name] = view
            some = [Factors(**each) for each in given]  # type: ignore[arg-type]
            getattr(HostFactoring(codec, some, senders, average), part)(None)

        self._coding.unless(skip, f"powersgd's {part} of", read, [*written, self._scratch], run)
