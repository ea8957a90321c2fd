"""Memory that a rank gives to its node: allocated, freed, and mapped by neighbours."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator

import numpy as np
import pytest

from ncclkv.arrays.memory import address
from ncclkv.comm.shm.allocator import Allocator
from ncclkv.comm.shm.segment import MIB, MemfdSegment, Ticket, WindowSegment
from ncclkv.comm.types import ALIGNMENT

MOST = 1 << 40


@pytest.fixture
def segment() -> Iterator[MemfdSegment]:
    made, _ = MemfdSegment.create()
    yield made
    made.close()


def taken(allocator: Allocator, nbytes: int) -> np.ndarray:
    array = allocator.take(nbytes)
    assert array is not None
    return array


def test_arrays_are_aligned_zeroed_and_disjoint(segment: MemfdSegment) -> None:
    allocator = Allocator(segment, 0, MOST)
    arrays = [taken(allocator, nbytes) for nbytes in (1, 255, 256, 257, 100 * MIB, 7)]
    for number, array in enumerate(arrays, start=1):
        assert address(array) % ALIGNMENT == 0
        assert not array[:1000].any()
        array[:1000] = number
    for number, array in enumerate(arrays, start=1):
        assert (array[:1000] == number).all()


def test_memory_is_freed_with_the_last_view_and_zeroed(segment: MemfdSegment) -> None:
    allocator = Allocator(segment, 0, MOST)
    array = taken(allocator, 1000)
    where, view = address(array), array.view(np.float32)[10:20]
    array[:] = 1
    del array
    assert address(taken(allocator, 1000)) != where
    assert (view.view(np.uint8) == 1).all()
    del view
    again = taken(allocator, 1000)
    assert address(again) == where
    assert not again.any()


@pytest.mark.parametrize("seed", range(20))
def test_random_allocations_and_frees_never_overlap(segment: MemfdSegment, seed: int) -> None:
    rng, allocator = random.Random(seed), Allocator(segment, 0, MOST)
    live: list[tuple[np.ndarray, int]] = []
    for step in range(200):
        if live and rng.random() < 0.5:
            live.pop(rng.randrange(len(live)))
            continue
        array = taken(allocator, rng.choice([1, 100, 256, 257, 4096, 10_240]))
        assert not array.any()
        array[:] = step % 255 + 1
        live.append((array, step % 255 + 1))
        assert all((other == number).all() for other, number in live)


def test_equal_calls_allocate_the_same_shared_memory(segment: MemfdSegment) -> None:
    first, second = (Allocator(segment, 0, MOST, reuse=False) for _ in range(2))
    early = taken(first, 5000)
    early[:] = 7
    # A later allocation must not overwrite the others' data.
    late = taken(second, 5000)
    assert (late == 7).all()
    del early
    offset, other = first.offset_of(taken(first, 300)), second.offset_of(taken(second, 300))
    assert offset == other


def test_an_offset_gives_a_neighbour_the_same_bytes() -> None:
    segment, ticket = MemfdSegment.create()
    allocator = Allocator(segment, 1 * MIB, MOST)
    array = taken(allocator, 5000)[1000:3000]
    offset = allocator.offset_of(array)
    assert offset is not None
    extent = MemfdSegment.open(ticket).map(offset.start, offset.length)
    extent[offset.offset : offset.offset + array.nbytes] = 9
    assert (array == 9).all()


def test_memory_of_others_has_no_offset(segment: MemfdSegment) -> None:
    allocator = Allocator(segment, 0, MOST)
    assert allocator.offset_of(np.zeros(10)) is None
    array = taken(allocator, 1000)
    assert allocator.offset_of(np.zeros(10)) is None
    assert allocator.offset_of(array) is not None


def test_a_full_segment_returns_no_memory(segment: MemfdSegment) -> None:
    allocator = Allocator(segment, 0, 1 * MIB)
    whole = allocator.take(1 * MIB)
    assert whole is not None
    assert allocator.take(1) is None
    del whole
    assert allocator.take(1) is not None


def test_a_file_without_the_ranks_ticket_is_refused() -> None:
    segment, ticket = MemfdSegment.create()
    with pytest.raises(FileNotFoundError, match="is another file"):
        MemfdSegment.open(Ticket(ticket.process, ticket.descriptor, b"x" * 16))
    segment.close()
    with pytest.raises(OSError, match="No such file"):
        MemfdSegment.open(ticket)


def test_freed_memory_merges_into_one_extent(segment: MemfdSegment) -> None:
    allocator = Allocator(segment, 4096, 1 * MIB)
    assert allocator.size == 1 * MIB - 4096
    first, second = taken(allocator, 600_000), taken(allocator, 400_000)
    offset = allocator.offset_of(second)
    assert offset is not None
    assert (offset.start, offset.length) == (4096, allocator.size)
    second[:] = 3
    extent = segment.map(offset.start, offset.length)
    assert (extent[offset.offset : offset.offset + 400_000] == 3).all()
    assert not first.any()
    assert allocator.take(100_000) is None


def test_a_window_part_is_the_same_memory_until_closed() -> None:
    memory = np.zeros(1 * MIB, np.uint8)
    segment = WindowSegment(memory)
    assert segment.capacity == 1 * MIB
    segment.map(4096, 100)[:] = 3
    assert (WindowSegment(memory).map(4000, 200)[96:196] == 3).all()
    segment.close()
    assert segment.map(0, 10).size == 0


@pytest.mark.parametrize("stop", [4096, 1000])
def test_an_empty_allocator_has_no_memory(stop: int) -> None:
    allocator = Allocator(WindowSegment(np.zeros(4096, np.uint8)), 4096, stop)
    assert allocator.size == 0
    assert allocator.take(1) is None


def test_unwritten_pages_take_no_memory(segment: MemfdSegment) -> None:
    array = segment.map(0, 1 << 36)
    array[0] = 1
    assert os.fstat(segment._descriptor).st_blocks * 512 < MIB
