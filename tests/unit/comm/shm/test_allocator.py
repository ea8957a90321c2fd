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
def space() -> Iterator[MemfdSegment]:
    made, _ = MemfdSegment.create()
    yield made
    made.close()


def taken(arena: Allocator, nbytes: int) -> np.ndarray:
    array = arena.take(nbytes)
    assert array is not None
    return array


def test_arrays_are_aligned_zeroed_and_disjoint(space: MemfdSegment) -> None:
    arena = Allocator(space, 0, MOST)
    arrays = [taken(arena, nbytes) for nbytes in (1, 255, 256, 257, 100 * MIB, 7)]
    for number, array in enumerate(arrays, start=1):
        assert address(array) % ALIGNMENT == 0
        assert not array[:1000].any()
        array[:1000] = number
    for number, array in enumerate(arrays, start=1):
        assert (array[:1000] == number).all()


def test_memory_is_freed_with_the_last_view_and_zeroed(space: MemfdSegment) -> None:
    arena = Allocator(space, 0, MOST)
    array = taken(arena, 1000)
    where, view = address(array), array.view(np.float32)[10:20]
    array[:] = 1
    del array
    assert address(taken(arena, 1000)) != where
    assert (view.view(np.uint8) == 1).all()
    del view
    again = taken(arena, 1000)
    assert address(again) == where
    assert not again.any()


@pytest.mark.parametrize("seed", range(20))
def test_random_allocations_and_frees_never_overlap(space: MemfdSegment, seed: int) -> None:
    rng, arena = random.Random(seed), Allocator(space, 0, MOST)
    live: list[tuple[np.ndarray, int]] = []
    for step in range(200):
        if live and rng.random() < 0.5:
            live.pop(rng.randrange(len(live)))
            continue
        array = taken(arena, rng.choice([1, 100, 256, 257, 4096, 10_240]))
        assert not array.any()
        array[:] = step % 255 + 1
        live.append((array, step % 255 + 1))
        assert all((other == number).all() for other, number in live)


def test_equal_calls_allocate_the_same_shared_memory(space: MemfdSegment) -> None:
    first, second = (Allocator(space, 0, MOST, reuse=False) for _ in range(2))
    early = taken(first, 5000)
    early[:] = 7
    # A later allocation must not overwrite the others' data.
    late = taken(second, 5000)
    assert (late == 7).all()
    del early
    place, other = first.place(taken(first, 300)), second.place(taken(second, 300))
    assert place == other


def test_an_offset_gives_a_neighbour_the_same_bytes() -> None:
    space, ticket = MemfdSegment.create()
    arena = Allocator(space, 1 * MIB, MOST)
    array = taken(arena, 5000)[1000:3000]
    place = arena.place(array)
    assert place is not None
    extent = MemfdSegment.open(ticket).map(place.start, place.length)
    extent[place.offset : place.offset + array.nbytes] = 9
    assert (array == 9).all()


def test_memory_of_others_has_no_offset(space: MemfdSegment) -> None:
    arena = Allocator(space, 0, MOST)
    assert arena.place(np.zeros(10)) is None
    array = taken(arena, 1000)
    assert arena.place(np.zeros(10)) is None
    assert arena.place(array) is not None


def test_a_full_segment_returns_no_memory(space: MemfdSegment) -> None:
    arena = Allocator(space, 0, 1 * MIB)
    whole = arena.take(1 * MIB)
    assert whole is not None
    assert arena.take(1) is None
    del whole
    assert arena.take(1) is not None


def test_a_file_without_the_ranks_ticket_is_refused() -> None:
    space, ticket = MemfdSegment.create()
    with pytest.raises(FileNotFoundError, match="is not the memory of that rank"):
        MemfdSegment.open(Ticket(ticket.process, ticket.descriptor, b"x" * 16))
    space.close()
    with pytest.raises(OSError, match="No such file"):
        MemfdSegment.open(ticket)


def test_freed_memory_merges_into_one_extent(space: MemfdSegment) -> None:
    arena = Allocator(space, 4096, 1 * MIB)
    assert arena.size == 1 * MIB - 4096
    first, second = taken(arena, 600_000), taken(arena, 400_000)
    place = arena.place(second)
    assert place is not None
    assert (place.start, place.length) == (4096, arena.size)
    second[:] = 3
    extent = space.map(place.start, place.length)
    assert (extent[place.offset : place.offset + 400_000] == 3).all()
    assert not first.any()
    assert arena.take(100_000) is None


def test_a_window_part_is_the_same_memory_until_closed() -> None:
    memory = np.zeros(1 * MIB, np.uint8)
    space = WindowSegment(memory)
    assert space.capacity == 1 * MIB
    space.map(4096, 100)[:] = 3
    assert (WindowSegment(memory).map(4000, 200)[96:196] == 3).all()
    space.close()
    assert space.map(0, 10).size == 0


@pytest.mark.parametrize("stop", [4096, 1000])
def test_an_empty_allocator_has_no_memory(stop: int) -> None:
    arena = Allocator(WindowSegment(np.zeros(4096, np.uint8)), 4096, stop)
    assert arena.size == 0
    assert arena.take(1) is None


def test_unwritten_pages_take_no_memory(space: MemfdSegment) -> None:
    array = space.map(0, 1 << 36)
    array[0] = 1
    assert os.fstat(space._descriptor).st_blocks * 512 < MIB
