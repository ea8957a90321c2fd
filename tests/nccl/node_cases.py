"""Cases of slices that nodes add and encode by kernels: the bits of the host's arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ncclkv.comm.programs.half_decoding import HalfDecoding
from ncclkv.compress.half import BF16, FP16, Half
from ncclkv.compress.topk import TopK
from ncclkv.engine.node_blocks import blocks_of
from ncclkv.engine.node_coders import CountedNodes, HalfNodes, NodeCoder, TopNodes
from ncclkv.engine.reduction import Span
from ncclkv.engine.residuals import Residuals
from ncclkv.engine.saturation import Saturation
from ncclkv.kernels.base import Kernels
from ncclkv.kernels.host import HostKernels
from ncclkv.table.bucket import Bucket, Entry, make_buckets
from ncclkv.table.registry import KeySpec
from tests.codecs import numbers, quantiser
from tests.nccl.kernel_cases import Stage, dtype_of, same_bits

LENGTHS = {"a": 1000, "b": 7, "empty": 0, "long": 140_001, "c": 64, "d": 3}
"""Lengths of keys: a slice begins within the longest, and a host adds it in several blocks."""

CODECS: dict[str, Callable[[], Any]] = {
    "2bit": lambda: quantiser("2bit", 1.7),
    "1bit": lambda: quantiser("1bit", 0.0),
    "fp16": FP16,
    "fp16 with feedback": lambda: FP16(error_feedback=True),
    "bf16 with feedback": lambda: BF16(error_feedback=True),
    "topk": lambda: TopK(ratio=0.1),
}


def bucket_of(dtype: str) -> Bucket:
    """Return a bucket of all keys."""
    specs = [
        KeySpec(key, index, (length,), np.dtype(dtype))
        for index, (key, length) in enumerate(LENGTHS.items())
    ]
    (bucket,) = make_buckets(specs, 1 << 30)
    return bucket


def coder_of(codec: Any, kernels: Kernels, saturation: Saturation) -> NodeCoder:
    """Return what encodes sums of nodes in one kind of memory."""
    if isinstance(codec, TopK):
        return TopNodes(codec, kernels)
    if isinstance(codec, Half):
        return HalfNodes(codec, kernels)
    return CountedNodes(codec, kernels, saturation)


class Sender:
    """A rank that encodes the slices of a bucket, in one kind of memory.

    Parameters
    ----------
    kernels : Kernels
    put : callable
        Returns a copy of an array of the host in the memory of the kernels.
    codec : CountedCodec, Half or TopK
    bucket : Bucket
    bounds : (int, int)
        The elements of the bucket that it encodes.
    lo : int
        The first element of the bucket that is pushed.
    """

    def __init__(
        self,
        kernels: Kernels,
        put: Callable[[np.ndarray], Any],
        codec: Any,
        bucket: Bucket,
        bounds: tuple[int, int],
        lo: int,
    ) -> None:
        span = Span(lo, bucket.count, np.empty(0), np.empty(0), "", bucket=bucket)
        self.residuals, self.saturation = Residuals(kernels), Saturation(1)
        coder = coder_of(codec, kernels, self.saturation)
        kept = self.residuals if codec.keeps_residual else None
        within = bounds[0] - lo, bounds[1] - lo
        blocks = blocks_of(span, within, kept, coder.block)
        total = put(np.zeros(min(bounds[1] - bounds[0], coder.block), bucket.dtype))
        begin, end = coder.extents(span.entries, lo).codes(within)
        self.payload = put(np.zeros(end - begin, np.uint8))
        self.encode = coder.encode(blocks, total, self.payload, "avg", 6)

    def check(self, entry: Entry, host: Sender, get: Callable[[Any], np.ndarray]) -> None:
        """Fail unless this sender keeps of a key what a sender of the host keeps."""
        key, size = entry.key, entry.spec.size
        assert self.saturation.share(key, size) == host.saturation.share(key, size)
        kept = [each.residuals.all_of(key) for each in (self, host)]
        for found, wanted in zip(*kept, strict=True):
            assert same_bits(get(found), wanted)


class NodeCases:
    """Cases of `NodeCoder` and `HalfDecoding`."""

    @pytest.mark.parametrize("first", ["a", "long"])
    @pytest.mark.parametrize("owner", [0, 1])
    @pytest.mark.parametrize("name", CODECS)
    def test_slices_are_added_and_encoded(
        self, stage: Stage, name: str, owner: int, first: str
    ) -> None:
        codec, rng = CODECS[name](), np.random.default_rng(8)
        words = np.dtype(np.float32 if isinstance(codec, TopK) else np.uint8)
        if isinstance(codec, Half):
            words = dtype_of(codec.wire_dtype)
        for dtype in codec.dtypes:
            bucket = bucket_of(dtype)
            lo = next(entry.lo for entry in bucket.entries if entry.key == first)
            begin, end = coder_of(codec, HostKernels(), Saturation(1)).slices(bucket, 2)[owner]
            bounds = max(begin, lo), end
            host = Sender(HostKernels(), np.copy, codec, bucket, bounds, lo)
            device = Sender(stage.kernels, stage.put, codec, bucket, bounds, lo)
            skipped = stage.put(np.ones(1, np.int32))
            for _ in range(2):
                arrays = [numbers(rng, bounds[1] - bounds[0], special=True) for _ in range(3)]
                with np.errstate(invalid="ignore"):  # of signalling NaNs
                    arrays = [array.astype(dtype) for array in arrays]
                host.encode(arrays, None)
                given = [stage.put(array) for array in arrays]
                device.encode(given, skipped)
                device.encode(given, None)
                stage.settle()
                assert same_bits(stage.get(device.payload).view(words), host.payload.view(words))
                for entry in bucket.entries:
                    device.check(entry, host, stage.get)

    @pytest.mark.parametrize("op", ["sum", "max"])
    @pytest.mark.parametrize(("codec", "dtype"), [(FP16(), "float64"), (BF16(), "float32")])
    def test_halves_of_nodes_are_added(
        self, stage: Stage, codec: Half, dtype: str, op: str
    ) -> None:
        rng, words = np.random.default_rng(9), dtype_of(codec.wire_dtype)
        payloads = [rng.standard_normal(70_100).astype(words).view(np.uint8) for _ in range(3)]
        given, bounds = [stage.put(payload) for payload in payloads], (38, 70_083)
        expected, packed = np.zeros(70_100, dtype), np.zeros(2 * 70_100, np.uint8)
        found, into = stage.put(expected), stage.put(packed)
        host = HalfDecoding(codec, op, expected, HostKernels(), 70_045)
        device = HalfDecoding(codec, op, found, stage.kernels, 70_045)
        host.write(payloads, bounds, None)
        ranges: list[tuple[int, int]] = []
        device.write(given, bounds, lambda lo, hi: ranges.append((lo, hi)))
        assert ranges == [bounds]
        assert stage.get(found).tobytes() == expected.tobytes()
        host.pack(payloads, (64, 70_080), packed)
        device.pack(given, (64, 70_080), into)
        assert stage.get(into).tobytes() == packed.tobytes()
        host.write_packed(packed, (0, 70_000), None)
        device.write_packed(into, (0, 70_000), None)
        assert stage.get(found).tobytes() == expected.tobytes()
