"""Arguments of launches: every byte and element exactly once, also past 2^31 of them."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ncclkv.kernels.base import Segments
from ncclkv.kernels.device.copies import CopyTable, plan_copies
from ncclkv.kernels.device.kernel_args import (
    COPY_BYTES,
    PIECES,
    UPDATED_ELEMENTS,
    PlannedLaunch,
    first_blocks,
    plan_updates,
)

NEAR_BLOCKS = st.integers(0, 5).flatmap(
    lambda blocks: st.integers(-2, 2).map(lambda more: max(0, blocks * COPY_BYTES + more))
)
SIZES = st.one_of(st.integers(0, 70), NEAR_BLOCKS, st.integers(2**31 - 2, 2**40))


def piece_of(argument: np.ndarray, block: int) -> int:
    """Return the piece of a block, by the rule in ``cuda/blocks.cuh``."""
    first = argument["first"][: int(argument["count"]) + 1].astype(np.int64)
    (pieces,) = np.nonzero((first[:-1] <= block) & (block < first[1:]))
    assert len(pieces) == 1
    return int(pieces[0])


def edges(launches: list[PlannedLaunch]) -> Iterator[tuple[np.ndarray, int, int, int]]:
    """Return the argument, number, first and last block of each piece with blocks."""
    for blocks, argument, _ in launches:
        first = argument["first"][: int(argument["count"]) + 1].tolist()
        assert first[0] == 0
        assert first[-1] == blocks < 2**31
        for piece, (low, high) in enumerate(pairwise(first)):
            if low < high:
                assert piece_of(argument, low) == piece_of(argument, high - 1) == piece
                yield argument, piece, low, high - 1


@settings(deadline=None)
@given(st.lists(SIZES, max_size=2 * PIECES + 3))
def test_copies_cover_each_byte_once(sizes: list[int]) -> None:
    nbytes = np.array(sizes, np.int64)
    # Addresses that differ by piece, with bits above 2^32.
    sources = np.arange(len(sizes), dtype=np.uint64) * 2**44 + 16
    destinations = sources + 2**43
    launches = plan_copies(sources, destinations, nbytes)
    assert len(launches) == -(-len(sizes) // PIECES)
    found = [
        (int(a["source"][i]), int(a["destination"][i]), int(a["nbytes"][i]))
        for a, i, _, _ in edges(launches)
    ]
    given_ = zip(sources.tolist(), destinations.tolist(), sizes, strict=True)
    assert found == [copy for copy in given_ if copy[2]]
    for argument, piece, low, last in edges(launches):
        covered = (last - low) * COPY_BYTES
        assert covered < int(argument["nbytes"][piece]) <= covered + COPY_BYTES


@settings(deadline=None)
@given(st.lists(SIZES, max_size=2 * PIECES + 3), st.integers(0, 2**40))
def test_segments_cover_each_element_once(sizes: list[int], begin: int) -> None:
    offsets = [begin, *(begin + np.cumsum(sizes, dtype=np.int64)).tolist()]
    launches = plan_updates(Segments(np.array(offsets, np.int64)))
    rows = {id(launch.argument): launch.pieces.start for launch in launches}
    position = begin
    for argument, piece, low, last in edges(launches):
        start, stop = (int(argument["start"][piece + k]) for k in (0, 1))
        assert start == position
        covered = (last - low) * UPDATED_ELEMENTS
        assert covered < stop - start <= covered + UPDATED_ELEMENTS
        row = rows[id(argument)] + piece
        assert offsets[row : row + 2] == [start, stop]
        position = stop
    assert position == offsets[-1]


@settings(deadline=None)
@given(st.lists(SIZES, max_size=20), st.sampled_from([1, 7, COPY_BYTES]))
def test_first_blocks_against_counting(sizes: list[int], per_block: int) -> None:
    first = [0]
    for size in sizes:
        first.append(first[-1] + (size + per_block - 1) // per_block)
    assert first_blocks(np.array(sizes, np.int64), per_block).tolist() == first


class Stand:
    """The attributes of a device array that a table reads."""

    def __init__(
        self,
        address: int,
        nbytes: int,
        dtype: str = "float32",
        flat: bool = True,
        device: int = 0,
    ):
        self.device = SimpleNamespace(id=device)
        self.data = SimpleNamespace(ptr=address)
        self.nbytes = nbytes
        self.dtype = np.dtype(dtype)
        self.flags = SimpleNamespace(c_contiguous=flat)


def _table() -> tuple[CopyTable, list[Any], list[Any]]:
    sources = [Stand(4096 * i, 64 + i) for i in range(1, 4)]
    destinations = [Stand(2**40 + 4096 * i, 64 + i) for i in range(1, 4)]
    return CopyTable(sources, destinations), sources, destinations


def test_table_matches_the_same_arrays_and_others_in_their_places() -> None:
    table, sources, destinations = _table()
    assert table.matches(sources, destinations)
    again = [Stand(a.data.ptr, a.nbytes) for a in sources]
    for _ in range(2):
        assert table.matches(again, destinations)
        assert table.matches(list(again), list(destinations))


@pytest.mark.parametrize(
    "other",
    [
        Stand(8192 + 4, 66),
        Stand(8192, 67),
        Stand(8192, 66, dtype="int32"),
        Stand(8192, 66, flat=False),
        np.zeros(66, np.uint8),
    ],
    ids=["moved", "longer", "another dtype", "another order", "in host memory"],
)
@pytest.mark.parametrize("side", [0, 1])
def test_table_does_not_match_what_is_copied_otherwise(other: Any, side: int) -> None:
    table, *arrays = _table()
    if isinstance(other, Stand) and side:
        other = Stand(
            other.data.ptr + 2**40, other.nbytes, other.dtype.name, other.flags.c_contiguous
        )
    arrays[side][1] = other
    assert not table.matches(*arrays)
    assert CopyTable(*arrays).matches(*arrays)


def test_table_does_not_match_another_order_or_number() -> None:
    table, sources, destinations = _table()
    assert not table.matches(sources[::-1], destinations)
    assert not table.matches(sources, destinations[::-1])
    assert not table.matches(sources[:2], destinations[:2])
    assert not table.matches([], [])


def test_table_leaves_alone_what_is_more_than_a_copy_of_bytes() -> None:
    sources = [
        Stand(4096, 64),
        Stand(8192, 64, dtype="float16"),
        Stand(12288, 64, flat=False),
        np.zeros(16, np.float32),
        Stand(16384, 64),
        Stand(20480, 64),
        Stand(24576, 64, device=1),
    ]
    destinations = [Stand(2**40 + 4096 * i, 64) for i in range(7)]
    destinations[5] = Stand(2**41, 64, flat=False)
    table = CopyTable(sources, destinations)
    assert table.alone == [1, 2, 3, 5, 6]
    ((blocks, argument, _),) = table.launches
    assert (blocks, int(argument["count"])) == (2, 2)
    assert argument["source"][:2].tolist() == [4096, 16384]


def test_table_keeps_no_array_alive() -> None:
    table, sources, destinations = _table()
    for _ in range(2):
        alive = [weakref.ref(array) for array in sources]
        sources.clear()
        gc.collect()
        assert [array() for array in alive] == [None] * 3
        # New arrays may have the addresses of freed ones.
        sources += [Stand(4096 * i, 64 + i) for i in range(1, 4)]
        assert table.matches(sources, destinations)


def test_nothing_to_copy_or_to_update_is_no_launch() -> None:
    assert CopyTable([], []).launches == []
    assert [launch.blocks for launch in plan_updates(Segments(np.array([5, 5])))] == [0]
