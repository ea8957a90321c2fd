"""The layout of keys in buckets, and the plan of a flush: no arrays and no ranks."""

from __future__ import annotations

import math
from itertools import pairwise

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ncclkv.table.bucket import ALIGNMENT, Bucket, make_buckets
from ncclkv.table.cost import CostModel, Sizing
from ncclkv.table.plan import divide, explain, label, launch_order, ranges
from ncclkv.table.registry import Key, KeySpec
from tests.harness.extent import examples

DTYPES = [np.dtype(d) for d in ("?", "i1", "u2", "f2", ml_dtypes.bfloat16, "f4", "f8", "c8", "c16")]
SHAPES = st.one_of(
    st.just(()),
    st.tuples(st.integers(0, 400)),
    st.tuples(st.integers(0, 7), st.integers(0, 40)),
)
SIZES_OF_BUCKETS = st.sampled_from([0, 1, 255, 256, 257, 1024, 4096, 25 * 1024 * 1024])


@st.composite
def tables(draw: st.DrawFn) -> list[KeySpec]:
    """Draw specs in registry order, of a few dtypes and ops."""
    kinds = draw(st.lists(st.sampled_from(DTYPES), min_size=1, max_size=3, unique=True))
    specs: list[KeySpec] = []
    for index in range(draw(st.integers(1, 25))):
        shape = draw(SHAPES)
        op = draw(st.sampled_from(["sum", "sum", "avg", "max"]))
        specs.append(KeySpec(1000 - index, index, shape, draw(st.sampled_from(kinds)), op))
    return specs


layouts = st.tuples(tables(), SIZES_OF_BUCKETS)
few = settings(max_examples=examples(200), deadline=None, derandomize=True)


@few
@given(layouts)
def test_every_key_has_one_slot(layout: tuple[list[KeySpec], int]) -> None:
    specs, bucket_bytes = layout
    found = [entry.spec for bucket in make_buckets(specs, bucket_bytes) for entry in bucket.entries]
    assert sorted(found, key=lambda spec: spec.index) == specs


@few
@given(layouts, st.integers(0, 9))
def test_slots_are_aligned_ordered_and_disjoint(
    layout: tuple[list[KeySpec], int], first: int
) -> None:
    buckets = make_buckets(*layout, first)
    assert [bucket.index for bucket in buckets] == [*range(first, first + len(buckets))]
    for bucket in buckets:
        assert bucket.nbytes % ALIGNMENT == 0
        assert bucket.nbytes == bucket.count * bucket.dtype.itemsize
        end = 0
        for entry in bucket.entries:
            assert (entry.spec.dtype, entry.spec.op) == (bucket.dtype, bucket.op)
            assert entry.lo * bucket.dtype.itemsize % ALIGNMENT == 0
            assert entry.lo >= end
            assert entry.hi - entry.lo == entry.spec.size
            end = entry.hi
        assert end <= bucket.count
        indices = [entry.spec.index for entry in bucket.entries]
        assert indices == sorted(indices)


@few
@given(layouts)
def test_capacity_is_the_need_of_the_keys(layout: tuple[list[KeySpec], int]) -> None:
    for bucket in make_buckets(*layout):
        padded = [-(-entry.spec.nbytes // ALIGNMENT) * ALIGNMENT for entry in bucket.entries]
        assert bucket.nbytes == sum(padded)


@few
@given(layouts, st.integers(1, 5), st.sampled_from([1, 16]))
def test_lengths_are_the_least_multiples(
    layout: tuple[list[KeySpec], int], ranks: int, unit: int
) -> None:
    plain = make_buckets(*layout)
    for before, bucket in zip(plain, make_buckets(*layout, 0, ranks * unit), strict=True):
        assert bucket.entries == before.entries
        step = math.lcm(ALIGNMENT // bucket.dtype.itemsize, ranks * unit)
        assert bucket.count % step == 0
        assert 0 <= bucket.count - before.count < step


@few
@given(layouts)
def test_buckets_hold_at_most_bucket_bytes(layout: tuple[list[KeySpec], int]) -> None:
    specs, bucket_bytes = layout
    for bucket in make_buckets(specs, bucket_bytes):
        if len(bucket.entries) > 1:
            assert bucket_bytes > 0
            assert bucket.entries[-1].hi * bucket.dtype.itemsize <= bucket_bytes
        for entry in bucket.entries:
            if entry.spec.nbytes > bucket_bytes:
                assert len(bucket.entries) == 1, "a key larger than a bucket has its own"


@few
@given(layouts)
def test_no_bucket_is_opened_while_the_last_of_its_kind_has_space(
    layout: tuple[list[KeySpec], int],
) -> None:
    specs, bucket_bytes = layout
    last: dict[tuple[np.dtype, str], Bucket] = {}
    for bucket in make_buckets(specs, bucket_bytes):
        first = bucket.entries[0].spec
        if first.nbytes > bucket_bytes or bucket_bytes == 0:
            continue
        before = last.get((bucket.dtype, bucket.op))
        if before is not None:
            padded = -(-before.entries[-1].hi * bucket.dtype.itemsize // ALIGNMENT) * ALIGNMENT
            assert padded + first.nbytes > bucket_bytes
        last[bucket.dtype, bucket.op] = bucket


@few
@given(layouts)
def test_no_fusion_with_0(layout: tuple[list[KeySpec], int]) -> None:
    specs, _ = layout
    assert [len(bucket.entries) for bucket in make_buckets(specs, 0)] == [1] * len(specs)


@few
@given(layouts)
def test_the_layout_of_the_first_keys_does_not_depend_on_later_ones(
    layout: tuple[list[KeySpec], int],
) -> None:
    specs, bucket_bytes = layout
    some = specs[: len(specs) // 2]
    whole = {
        entry.key: (entry.lo, bucket.dtype)
        for bucket in make_buckets(specs, bucket_bytes)
        for entry in bucket.entries
    }
    for bucket in make_buckets(some, bucket_bytes):
        for entry in bucket.entries:
            assert whole[entry.key] == (entry.lo, bucket.dtype)


def holders(bucket: Bucket) -> list[Key | None]:
    """Return the key of each element of a bucket."""
    owner: list[Key | None] = [None] * bucket.count
    for entry in bucket.entries:
        owner[entry.lo : entry.hi] = [entry.key] * entry.spec.size
    return owner


@few
@given(layouts, st.data())
def test_runs_hold_exactly_the_requested_keys(
    layout: tuple[list[KeySpec], int], data: st.DataObject
) -> None:
    for bucket in make_buckets(*layout):
        if bucket.count > 20_000:
            continue
        keys = [entry.key for entry in bucket.entries]
        wanted = data.draw(st.sets(st.sampled_from(keys)))
        runs = bucket.ranges(wanted)
        owner = holders(bucket)
        covered = [key for lo, hi in runs for key in owner[lo:hi]]
        sized = {entry.key for entry in bucket.entries if entry.spec.size}
        assert {key for key in covered if key is not None} == wanted & sized
        for entry in bucket.entries:
            assert covered.count(entry.key) == (entry.spec.size if entry.key in wanted else 0)
        assert all(lo < hi for lo, hi in runs)
        assert all(before[1] <= after[0] for before, after in pairwise(runs))


@few
@given(layouts, st.data())
def test_runs_are_as_long_as_can_be(layout: tuple[list[KeySpec], int], data: st.DataObject) -> None:
    for bucket in make_buckets(*layout):
        keys = [entry.key for entry in bucket.entries]
        wanted = data.draw(st.sets(st.sampled_from(keys)))
        runs = bucket.ranges(wanted)
        for before, after in pairwise(runs):
            # A key without elements has the offset of the key after it.
            between = [e.key for e in bucket.entries if before[1] <= e.lo <= after[0]]
            assert set(between) - wanted, "two runs with no strange key between them"


def test_an_unrequested_key_without_elements_separates_runs() -> None:
    (bucket,) = make_buckets(specs_of(3, 0, 3), 1024)
    assert bucket.ranges({"k0", "k2"}) == [(0, 3), (64, 67)]
    assert bucket.ranges({"k0", "k1", "k2"}) == [(0, 67)]


@few
@given(layouts, st.data())
def test_launches_reduce_the_pushed_keys_and_a_full_bucket_at_once(
    layout: tuple[list[KeySpec], int], data: st.DataObject
) -> None:
    for bucket in make_buckets(*layout):
        keys = [entry.key for entry in bucket.entries]
        pushed = data.draw(st.sets(st.sampled_from(keys)))
        found = ranges(bucket, pushed)
        if len(pushed) == len(keys):
            assert found == ([(0, bucket.count)] if bucket.count else [])
        else:
            assert found == bucket.ranges(pushed)
        assert all(label(bucket, span).startswith("key") for span in found)


def specs_of(*sizes: int) -> list[KeySpec]:
    return [KeySpec(f"k{i}", i, (size,), np.dtype("f4")) for i, size in enumerate(sizes)]


@pytest.mark.parametrize(
    ("sizes", "bucket_bytes", "buckets"),
    [
        ((3, 400, 3), 1024, [["k0", "k2"], ["k1"]]),
        ((64, 64, 64, 64, 1), 1024, [["k0", "k1", "k2", "k3"], ["k4"]]),
        ((64, 64, 64, 65, 1), 1024, [["k0", "k1", "k2"], ["k3", "k4"]]),
        ((0, 0, 3), 256, [["k0", "k1", "k2"]]),
        ((0, 0, 3), 0, [["k0"], ["k1"], ["k2"]]),
        ((256, 1), 1024, [["k0"], ["k1"]]),
    ],
)
def test_example_layouts(
    sizes: tuple[int, ...], bucket_bytes: int, buckets: list[list[str]]
) -> None:
    made = make_buckets(specs_of(*sizes), bucket_bytes)
    assert [[entry.key for entry in bucket.entries] for bucket in made] == buckets


@pytest.mark.parametrize(
    ("pushed", "expected", "labels"),
    [
        (["k0"], [(0, 3)], ["key 'k0'"]),
        (["k0", "k1"], [(0, 128)], ["keys 'k0' to 'k1' of bucket 4"]),
        (["k0", "k3"], [(0, 3), (192, 195)], ["key 'k0'", "key 'k3'"]),
        (["k1", "k0", "k3", "k2"], [(0, 256)], ["keys 'k0' to 'k3' of bucket 4"]),
        ([], [], []),
    ],
)
def test_example_launches(
    pushed: list[str], expected: list[tuple[int, int]], labels: list[str]
) -> None:
    (bucket,) = make_buckets(specs_of(3, 64, 64, 3), 1 << 20, first=4)
    found = ranges(bucket, set(pushed))
    assert found == expected
    assert [label(bucket, span) for span in found] == labels


@given(st.dictionaries(st.integers(0, 50), st.integers(-3, 3)))
def test_launches_are_ordered_by_priority_then_index(priorities: dict[int, int]) -> None:
    order = launch_order(priorities)
    assert sorted(order) == sorted(priorities)
    for before, after in pairwise(order):
        assert (priorities[before], -before) > (priorities[after], -after)


def test_text_of_the_plan() -> None:
    specs = [*specs_of(3, 64), KeySpec("m", 2, (), np.dtype("f8"), "max")]
    buckets, sizing = make_buckets(specs, 1 << 20), Sizing(1 << 20)
    lines = explain(buckets, ["late"], "rank 0", sizing, [0.0123456, None]).splitlines()
    columns = "bucket dtype op bytes keys owner predicted measured holds"
    assert lines[0].split() == columns.split()
    row = "0 float32 sum 512 2 rank 0 - 12.346 ms 'k0' to 'k1'"
    assert lines[1].split() == row.split()
    row = "1 float64 max 256 1 rank 0 - - 'm'"
    assert lines[2].split() == row.split()
    assert lines[3].startswith("bucket_bytes=1048576; no prediction")
    assert "bucket_bytes='auto'" in lines[3]
    assert lines[4] == "no bucket until the first push, grad_view or value: 'late'"
    assert len(lines) == 5


def test_the_columns_of_the_plan_stand_under_their_names() -> None:
    sizing = Sizing(0, CostModel(1.0, 1e8))
    head, *rows = explain(
        make_buckets(specs_of(3, 2**30), 0), [], "every rank", sizing, [99.0, 1e-6]
    ).splitlines()[:3]
    for row in rows:
        assert row.index("'k") == head.index("holds")
        for name in ("bytes", "keys", "predicted", "measured"):
            end = head.index(name) + len(name)
            assert row[end - 1] != " "
            assert row[end] == " "


def test_the_plan_predicts_by_the_cost_model() -> None:
    sizing = Sizing(1 << 20, CostModel(latency_s=0.002, bytes_per_s=256e3))
    lines = explain(
        make_buckets(specs_of(3), 1 << 20), [], "every rank", sizing, [None]
    ).splitlines()
    row = "0 float32 sum 256 1 every rank 3.000 ms - 'k0'"
    assert lines[1].split() == row.split()
    assert lines[2] == (
        "bucket_bytes=1048576 and predictions are by measurement: a collective takes 2.000 ms and "
        "4096.000 ms a MiB"
    )


@few
@given(layouts, st.integers(1, 5))
def test_each_key_has_one_rank_of_a_division(layout: tuple[list[KeySpec], int], size: int) -> None:
    buckets = make_buckets(*layout)
    divided = divide(buckets, [0] * size)
    loads = [0] * size
    for bucket, bounds in zip(buckets, divided, strict=True):
        assert len(bounds) == size + 1
        assert (bounds[0], bounds[-1]) == (0, bucket.count)
        assert bounds == sorted(bounds)
        assert {*bounds} <= {0, *bucket.lows, bucket.count}
        for entry in bucket.entries:
            inside = [rank for rank in range(size) if bounds[rank] <= entry.lo < bounds[rank + 1]]
            assert len(inside) == (1 if entry.lo < bucket.count else 0)
            for rank in inside:
                assert entry.hi <= bounds[rank + 1]
                loads[rank] += entry.spec.nbytes
    largest = max(entry.spec.nbytes for bucket in buckets for entry in bucket.entries)
    assert max(loads) - min(loads) <= 2 * largest
    # Buckets that are added later move no key.
    for count in range(len(buckets)):
        assert divide(buckets[:count], [0] * size) == divided[:count]


def test_large_keys_go_to_the_rank_with_the_fewest_bytes() -> None:
    specs = [
        KeySpec(index, index, (size,), np.dtype(np.float32))
        for index, size in enumerate((900, 500, 700, 100))
    ]
    bounds = divide(make_buckets(specs, 0), [0] * 3)
    owners = [next(rank for rank in range(3) if each[rank + 1]) for each in bounds]
    assert owners == [0, 1, 2, 1]
