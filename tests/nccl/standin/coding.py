"""The arithmetic of codecs on the stand-in's arrays: the host's, in the order of the stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ncclkv.compress.coding import Encode, HostCoding
from ncclkv.compress.entries import Bounds
from ncclkv.compress.half import Half
from tests.nccl.standin.streams import RecordingStreams

_HOST = HostCoding()


class StandInCoding:
    """A `ncclkv.compress.coding.Coding` for arrays of a stand-in's device."""

    def __init__(self, streams: RecordingStreams) -> None:
        self._streams = streams

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
            self._unless(skip, f"{codec.name} of", [gradients], [payload, *residuals], encode)

        return run

    def widen(self, codec: Half, payload: Any, out: Any) -> None:
        def run(payload: Any, out: Any) -> None:
            _HOST.widen(codec, payload, out)

        self._streams.work("widen", [payload], [out], run)

    def _unless(
        self, skip: Any, what: str, reads: Sequence[Any], writes: Sequence[Any], run: Any
    ) -> None:
        """Queue ``run(*reads, *writes)``, which a flag in memory may skip."""
        flags = [] if skip is None else [skip]
        count = len(flags)  # not the arrays: recorded work must not keep them alive

        def skipped(*views: Any) -> None:
            if not any(flag[0] for flag in views[:count]):
                run(*views[count:])

        self._streams.work(what, [*flags, *reads], writes, skipped)
