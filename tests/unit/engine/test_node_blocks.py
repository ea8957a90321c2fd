"""Blocks of a slice have each element of its keys once, and their counts stand for whole keys."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ncclkv.compress.coding import FoundOnHost
from ncclkv.engine.node_blocks import blocks_of, found_in_slice, parts_of
from ncclkv.engine.reduction import Span
from ncclkv.engine.residuals import Residuals
from ncclkv.kernels.host import HostKernels
from ncclkv.table.bucket import Bucket, make_buckets
from ncclkv.table.registry import KeySpec

FLOAT32 = np.dtype(np.float32)


def bucket_of(*lengths: int) -> Bucket:
    """Return a bucket of keys with these lengths."""
    specs = [KeySpec(index, index, (length,), FLOAT32) for index, length in enumerate(lengths)]
    (bucket,) = make_buckets(specs, 1 << 30)
    return bucket


def span_of(bucket: Bucket) -> Span:
    """Return the whole range of a bucket."""
    return Span(0, bucket.count, np.empty(0), np.empty(0), "", bucket=bucket)


@settings(deadline=None)
@given(data=st.data())
def test_blocks_have_each_element_and_what_it_owes_once(data: st.DataObject) -> None:
    bucket = bucket_of(*data.draw(st.lists(st.integers(0, 300), min_size=1, max_size=9)), 5)
    residuals = Residuals(HostKernels())
    for entry in bucket.entries:
        residuals.of(entry.spec)[...] = entry.lo + np.arange(entry.spec.size)
    begin = 64 * data.draw(st.integers(0, bucket.count // 64))
    end = data.draw(st.integers(begin, bucket.count))
    longest = 64 * data.draw(st.integers(1, 9))
    found = []
    for block in blocks_of(span_of(bucket), (begin, end), residuals, longest):
        assert 0 <= block.lo < block.hi <= end - begin
        assert block.hi - block.lo <= longest
        for (lo, hi), owed in zip(block.bounds, block.residuals, strict=True):
            assert owed.tolist() == [*range(begin + block.lo + lo, begin + block.lo + hi)]
            found += owed.tolist()
    wanted = [each for entry in bucket.entries for each in range(entry.lo, entry.hi)]
    assert found == [each for each in wanted if begin <= each < end]


def test_counts_of_a_part_stand_for_the_whole_key_at_each_look() -> None:
    bucket = bucket_of(10, 400)  # the second from element 64 on
    blocks = blocks_of(span_of(bucket), (0, 264), None, 128)
    assert [block.bounds for block in blocks] == [[(0, 10), (64, 128)], [(0, 128)], [(0, 8)]]
    counts = [[3, 10], [20], [1]]
    found = found_in_slice([FoundOnHost(each, []) for each in counts], parts_of(blocks))
    assert [*found.beyond] == [3, 31 * 400 // 200]
    counts[1][0] = 120  # as a device writes it, after the launch
    assert found[:] == [3, 131 * 400 // 200]


def test_the_gradients_of_the_first_block_have_the_root_mean_square() -> None:
    blocks = blocks_of(span_of(bucket_of(256)), (0, 256), None, 128)
    each = [FoundOnHost([0], [np.full(3, value, np.float32)]) for value in (2.0, 5.0)]
    assert found_in_slice(each, parts_of(blocks)).root_mean_square() == 2
