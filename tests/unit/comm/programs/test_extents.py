"""The bytes of elements in payloads."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from ncclkv.comm.programs.extents import KeyExtents, Words, counts_save
from ncclkv.compress.half import FP16
from ncclkv.compress.topk import TopK
from tests.codecs import quantiser

KEYS = [(0, 6), (64, 66), (128, 328)]
EXTENTS = KeyExtents(TopK(ratio=0.5), KEYS)


@settings(deadline=None)
@given(lo=st.integers(0, 350), count=st.integers(0, 350))
def test_a_range_has_the_payloads_of_its_keys(lo: int, count: int) -> None:
    hi = lo + count
    inside = [(first, end) for first, end in KEYS if max(first, lo) < min(end, hi)]
    begin, stop = EXTENTS.codes((lo, hi))
    if lo < hi:
        assert EXTENTS.within((lo, hi)) == inside
        assert stop - begin == sum(8 * ((end - first) // 2) for first, end in inside)
        if inside:
            assert begin == sum(8 * ((end - first) // 2) for first, end in KEYS if end <= lo)
    assert begin <= stop
    assert EXTENTS.packed((lo, hi), 3) == (3 * begin, 3 * stop)


def test_slices_of_codes_are_divided_if_counts_save() -> None:
    words = Words(quantiser("2bit"))
    slices = [(0, 128 * 1024), (128 * 1024, 256 * 1024)]
    assert not counts_save(words.codec, 2)
    assert words.divided(slices, 2) is None
    divided = words.divided(slices, 4)
    assert divided is not None
    assert [(each[0][0], each[-1][1], len(each)) for each in divided] == [
        (*bounds, 4) for bounds in slices
    ]
    assert words.divided([(0, 64), (64, 128)], 4) is None  # a second step costs more
    assert EXTENTS.divided(slices, 99) is None


def test_codes_begin_at_a_word() -> None:
    assert Words(quantiser("2bit")).codes((70, 200)) == (16, 52)
    assert Words(FP16()).codes((64, 200)) == (128, 400)
    assert Words(FP16()).packed((64, 200), 7) == (128, 400)
