"""Two-step sums over messages in memory: NumPy's sums, and as many bytes as are counted."""

from __future__ import annotations

import numpy as np
import pytest

from ncclkv.comm import two_step
from ncclkv.comm.destinations import EVERYONE, Owners, Root, To
from ncclkv.comm.two_step import (
    LEAST,
    Exchange,
    exchanges,
    scratch_count,
    slices,
    wire_bytes,
)
from ncclkv.comm.types import Apply, Buffer
from ncclkv.comm.wire import Limits
from tests.unit.comm.memory_wire import MemoryWire, Network, run

LIMITS = (Limits(0, 64), Limits(64, 1 << 20), Limits(16, 200, 16), LEAST)


def drawn_to(rng: np.random.Generator, count: int, size: int) -> To:
    """Return a destination."""
    kind = rng.integers(4)
    if kind == 0:
        return EVERYONE
    if kind == 1:
        return Root(int(rng.integers(size)))
    cuts = sorted(rng.integers(0, count + 1, size - 1).tolist())
    return Owners([0, *cuts, count])


def applied(seen: Buffer) -> Apply:
    """Return an `apply` that counts the elements in `seen`."""

    def apply(lo: int, hi: int) -> None:
        seen[lo:hi] += 1

    return apply


def check(seed: int) -> None:
    """Make one sum of drawn arrays, and compare it with NumPy's."""
    rng = np.random.default_rng(seed)
    size, count = int(rng.integers(1, 6)), int(rng.choice([0, 1, 3, 17, 64, 200]))
    dtype = rng.choice(np.array(["i2", "i8", "f4", "f8"]))
    limits, to = LIMITS[rng.integers(len(LIMITS))], drawn_to(rng, count, size)
    arrays = [rng.integers(-50, 50, count).astype(dtype) for _ in range(size)]
    wanted = np.sum(arrays, axis=0).astype(dtype)
    in_place = rng.random() < 0.5
    sends = [array.copy() for array in arrays]
    bounds = to.bounds if isinstance(to, Owners) else ()
    totals, seen = [], [np.zeros(count, int) for _ in sends]
    for rank, send in enumerate(sends):
        total = send if in_place else np.zeros(count, dtype)
        totals.append(total[slice(*to.part(rank, count))])
    network = Network(size)
    wires = [MemoryWire(network, rank, limits) for rank in range(size)]
    order = [[rank] for rank in range(size)]
    run(
        wires,
        [
            two_step.Sum(wire, [send], order, total, "sum", to, applied(each)).steps()
            for wire, send, total, each in zip(wires, sends, totals, seen, strict=True)
        ],
    )
    room = scratch_count(count, wanted.itemsize, to, size, limits) * wanted.itemsize
    for rank, (wire, total) in enumerate(zip(wires, totals, strict=True)):
        what = f"seed {seed}: rank {rank} of {size}, {count} {dtype}, {to}, {limits}"
        own = slice(0, count) if not bounds else slice(bounds[rank], bounds[rank + 1])
        if to.receives(rank):
            assert (total == wanted[own]).all(), what
        once = np.zeros(count, int)
        once[own] = to.receives(rank)
        assert (seen[rank] == once).all(), what
        counted = wire_bytes(count, wanted.itemsize, to, rank, size, limits)
        assert network.sent.get(rank, 0) == counted, what
        assert wire.most_scratch <= room, what


@pytest.mark.parametrize("first", range(0, 600, 100))
def test_sums_are_numpy_s_and_their_bytes_are_counted(first: int) -> None:
    for seed in range(first, first + 100):
        check(seed)


def test_several_parts_a_rank_are_folded_in_their_order() -> None:
    """Check sums in which ranks add 2, 1 and 2 parts; only the order of ranks gives 1.0."""
    order = [[0, 2], [1], [3, 4]]
    values = [1e8, 1.0, -1e8, 1.0, 0.0]
    for limits in LIMITS:
        network = Network(3)
        wires = [MemoryWire(network, rank, limits) for rank in range(3)]
        totals = [np.zeros(40, np.float32) for _ in wires]
        steps = [
            two_step.Sum(
                wire,
                [np.full(40, values[position], np.float32) for position in order[wire.rank]],
                order,
                total,
                "sum",
                EVERYONE,
            ).steps()
            for wire, total in zip(wires, totals, strict=True)
        ]
        run(wires, steps)
        assert all((total == 1.0).all() for total in totals), limits
        for rank, parts in enumerate([2, 1, 2]):
            counted = wire_bytes(40, 4, EVERYONE, rank, 3, limits, parts)
            assert network.sent[rank] == counted, limits


def test_a_long_sum_sends_twice_the_array_less_a_share() -> None:
    for size in (1, 2, 4):
        sent = [wire_bytes(1000, 4, EVERYONE, rank, size, LEAST) for rank in range(size)]
        assert sent == [2 * 4000 * (size - 1) // size] * size
    assert [wire_bytes(1000, 4, Root(1), rank, 4, LEAST) for rank in range(4)] == [
        *(4000, 3000, 4000, 4000)
    ]
    assert [wire_bytes(6, 4, Owners([0, 1, 3, 6]), rank, 3, LEAST) for rank in range(3)] == [
        *(20, 16, 12)
    ]


def test_slices_begin_at_aligned_elements() -> None:
    assert slices(1000, 4, 64) == [(0, 256), (256, 512), (512, 768), (768, 1000)]
    assert slices(10, 4) == [(0, 2), (2, 5), (5, 7), (7, 10)]
    assert slices(0, 2) == [(0, 0), (0, 0)]
    found = list(exchanges(100, 4, EVERYONE, 2, Limits(0, 256, 64)))
    assert found == [
        Exchange([(0, 16), (16, 48)], sends_on=True),
        Exchange([(48, 80), (80, 100)], sends_on=True),
    ]


def test_parts_of_owners_are_cut_into_as_many_chunks() -> None:
    found = list(exchanges(12, 4, Owners([0, 8, 8, 12]), 3, Limits(1000, 48)))
    assert found == [
        Exchange(((0, 4), (8, 8), (8, 10)), sends_on=False),
        Exchange(((4, 8), (8, 8), (10, 12)), sends_on=False),
    ]
