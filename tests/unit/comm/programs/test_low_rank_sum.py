"""Sums in the order of ranks, and sums of matrices by their products: any timing, any senders."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ncclkv.comm.destinations import EVERYONE, Owners, Root, To
from ncclkv.comm.programs import ordered_sum
from ncclkv.comm.programs.decoded import SHORT_BYTES, decoded
from ncclkv.comm.programs.low_rank_sum import Copies, Exchange, LowRankSum, Products
from ncclkv.comm.programs.ordered_sum import (
    UNIT,
    OrderedSum,
    scratch_of_sums,
    sums_of_chunks,
)
from ncclkv.comm.types import Buffer
from ncclkv.comm.wire import Limits, read_by
from ncclkv.compress.basis import Basis
from ncclkv.compress.factoring import Factors, HostFactoring
from ncclkv.compress.powersgd import PowerSGD
from ncclkv.kernels.host import HostKernels
from tests.harness.extent import examples
from tests.unit.comm.memory_wire import MappedWire, MemoryWire, Network, run, run_mapped

LIMITS = Limits(0, 1 << 30)
LONG = SHORT_BYTES // 4
COUNTS = [1, UNIT, LONG, LONG + 1, 3 * LONG + 7]


def added(arrays: list[Buffer], senders: frozenset[int]) -> Buffer:
    """Return the sum of arrays in the order of the ranks."""
    first, *rest = (arrays[rank] for rank in sorted(senders))
    total: Buffer = first.copy()
    for array in rest:
        total += array
    return total


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("size", [1, 2, 5])
def test_all_ranks_get_the_sum_in_their_order(count: int, size: int) -> None:
    rng, network = np.random.default_rng(count), Network(size)
    arrays = [rng.standard_normal(count).astype(np.float32) for _ in range(size)]
    for senders in frozenset(range(size)), frozenset([size - 1]), frozenset(range(0, size, 2)):
        expected, made = added(arrays, senders), OrderedSum(count, 4, size, senders)
        wires = [MemoryWire(network, rank, LIMITS) for rank in range(size)]
        own = [array.copy() for array in arrays]
        network.sent.clear()
        run(wires, [made.steps(*pair) for pair in zip(wires, own, strict=True)])
        assert {array.tobytes() for array in own} == {expected.tobytes()}
        assert [network.sent.get(rank, 0) for rank in range(size)] == [*map(made.sent, range(size))]


@pytest.mark.parametrize("size", [1, 2, 5])
def test_long_arrays_are_summed_chunk_by_chunk(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ordered_sum, "CHUNK_BYTES", 4 * (2 * LONG + 100))
    rng, network, senders = np.random.default_rng(size), Network(size), frozenset(range(size))
    arrays = [rng.standard_normal(5 * LONG).astype(np.float32) for _ in range(size)]
    expected = added(arrays, senders)
    made = [[*sums_of_chunks(array, size, senders)] for array in arrays]
    assert [chunk.size for chunk, _ in made[0]] == [2 * LONG + 100, 2 * LONG + 100, LONG - 200]
    for chunks in zip(*made, strict=True):
        wires = [MemoryWire(network, rank, LIMITS) for rank in range(size)]
        run(
            wires,
            [each.steps(wire, chunk) for wire, (chunk, each) in zip(wires, chunks, strict=True)],
        )
    assert {array.tobytes() for array in arrays} == {expected.tobytes()}


@pytest.mark.parametrize("size", [1, 2, 3, 8, 61])
@pytest.mark.parametrize("count", [*COUNTS, 10_000_001])
def test_the_scratch_of_sums_is_a_bound(count: int, size: int) -> None:
    nbytes, senders = scratch_of_sums(4 * count, size), frozenset(range(size))
    for shorter in range(count, 0, -max(1, count // 7)):
        made = OrderedSum(shorter, 4, size, senders)
        assert max(read_by(rank, size, made._sent, 4) for rank in range(size)) <= nbytes


SHAPE, SHORT = (2000, 20), 30
CODEC = PowerSGD(matrix_approximation_rank=3, start_powerSGD_iter=0)


class Rank:
    """The arrays of one rank: a matrix, a short key, and a key that is sent whole."""

    def __init__(self, rng: np.random.Generator) -> None:
        elements = SHAPE[0] * SHAPE[1]
        self.gradients = rng.standard_normal(elements + SHORT + 2 * LONG).astype(np.float32)
        self.matrix = self.gradients[:elements].reshape(SHAPE)
        self.short = self.gradients[elements : elements + SHORT]
        self.whole = self.gradients[elements + SHORT :]
        self.residual = np.zeros(SHAPE, np.float32)
        self.basis = Basis("w", SHAPE, HostKernels())
        self.basis.allocate(CODEC)
        self.receive = np.full_like(self.gradients, -7)
        tall, wide = CODEC.narrow_shapes(SHAPE)
        self.first = np.zeros(tall[0] * tall[1] + SHORT, np.float32)
        self.direction = np.zeros(tall, np.float32)
        self.second = np.zeros(wide, np.float32)

    def exchange(self, senders: int, sends: bool, divides: bool) -> Exchange:
        basis, residual = self.basis, self.residual if sends else None
        p, place = self.first[:-SHORT].reshape(self.direction.shape), self.first[-SHORT:]
        factors = Factors(
            self.matrix, residual, basis.q, basis.spare, p, self.direction, self.second
        )
        factoring = HostFactoring(CODEC, [factors], senders, divides)
        copies = [Copies(HostKernels(), *each) for each in (([self.short], [place]),
                                                            ([place], [self.short]))]  # fmt: skip
        second = self.second.reshape(-1)
        products = Products([basis], factoring, copies[0], copies[1], [], self.first, second)
        return Exchange([basis], [self.whole], products)


def product(ranks: list[Rank], senders: frozenset[int]) -> Buffer:
    """Return the product that stands for the sum of the matrices of senders, in float64."""
    total = np.sum([ranks[rank].matrix for rank in senders], axis=0, dtype=np.float64)
    q = CODEC.basis("w", SHAPE).T.astype(np.float64)
    p = np.linalg.qr(total @ q)[0]
    found: Buffer = p @ (total.T @ p).T
    return found


def check_sums(
    ranks: list[Rank], senders: frozenset[int], to: To, divides: bool, seed: int
) -> None:
    """Run the program on all ranks, with and without mapped memory, and check all it writes."""
    size, count = len(ranks), ranks[0].gradients.size
    divisor = np.float32(len(senders) if divides else 1)
    expected = product(ranks, senders) / divisor
    exact = [
        added([getattr(rank, name) for rank in ranks], senders) / divisor
        for name in ("short", "whole")
    ]
    parts = decoded(count, 1, to, size, None)
    before = [rank.matrix.copy() for rank in ranks]
    exchanges = [
        rank.exchange(len(senders), index in senders, divides) for index, rank in enumerate(ranks)
    ]
    programs = [
        LowRankSum(
            CODEC, partial(Exchange, *exchange), rank.gradients, rank.receive, size, senders,
            parts, divides,
        )
        for rank, exchange in zip(ranks, exchanges, strict=True)
    ]  # fmt: skip
    network, reads = Network(size), dict[int, dict[int, Buffer]]()
    wires = [MappedWire(network, rank, reads) for rank in range(size)]
    ranges: list[list[tuple[int, int]]] = [[] for _ in ranks]

    def apply(rank: int, lo: int, hi: int) -> None:
        ranges[rank].append((lo, hi))
        ranks[rank].gradients[...] = np.nan  # an update may write where the sums are

    steps = [
        program.steps(wire, partial(apply, wire.rank))
        for program, wire in zip(programs, wires, strict=True)
    ]
    run_mapped(steps, np.random.default_rng(seed))
    found = set()
    for index, (rank, (lo, hi)) in enumerate(zip(ranks, parts.parts, strict=True)):
        whole = np.concatenate([expected.reshape(-1), *exact])[lo:hi]
        np.testing.assert_allclose(rank.receive[lo:hi], whole, rtol=0, atol=1e-3)
        assert (rank.receive[:lo] == -7).all()
        assert (rank.receive[hi:] == -7).all()
        assert ranges[index] == ([(lo, hi)] if lo < hi else [])
        assert rank.basis.launches == 1
        assert rank.basis.has_sum
        found.add(rank.basis.q.tobytes())
        owed = before[index] - expected * divisor / len(senders) if index in senders else 0
        np.testing.assert_allclose(rank.residual, owed, rtol=0, atol=1e-3)
    assert len(found) == 1


@pytest.mark.parametrize("divides", [False, True])
@pytest.mark.parametrize(
    ("to", "senders"),
    [
        (EVERYONE, frozenset([0, 1, 2])),
        (EVERYONE, frozenset([2])),
        (Root(1), frozenset([0, 2])),
        (Owners([0, 100, 40_010, 40_000 + SHORT + 2 * LONG]), frozenset([0, 1, 2])),
    ],
)
def test_products_stand_for_sums(to: To, senders: frozenset[int], divides: bool) -> None:
    for seed in range(5):
        rng = np.random.default_rng(seed)
        check_sums([Rank(rng) for _ in range(3)], senders, to, divides, seed)


@settings(max_examples=examples(60), deadline=None)
@given(size=st.integers(1, 4), count=st.sampled_from(COUNTS), seed=st.integers(0, 2**32))
def test_mapped_arrays_may_be_read_late(size: int, count: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    arrays = [rng.standard_normal(count).astype(np.float32) for _ in range(size)]
    senders = frozenset(int(rank) for rank in rng.permutation(size)[: rng.integers(1, size + 1)])
    made, reads = OrderedSum(count, 4, size, senders), dict[int, dict[int, Buffer]]()
    expected, network = added(arrays, senders), Network(size)
    wires = [MappedWire(network, rank, reads) for rank in range(size)]
    run_mapped([made.steps(*pair) for pair in zip(wires, arrays, strict=True)], rng)
    assert {array.tobytes() for array in arrays} == {expected.tobytes()}


@settings(max_examples=examples(60), deadline=None)
@given(size=st.integers(1, 4), seed=st.integers(0, 2**32))
def test_an_update_may_write_where_a_whole_sum_is(size: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    arrays = [rng.standard_normal(COUNTS[-1]).astype(np.float32) for _ in range(size)]
    senders, found = frozenset(range(size)), [np.empty_like(array) for array in arrays]
    expected = added(arrays, senders)

    def apply(rank: int, lo: int, hi: int) -> None:
        found[rank][...] = arrays[rank]
        arrays[rank][...] = np.nan

    network, reads, steps = Network(size), dict[int, dict[int, Buffer]](), []
    for rank, array in enumerate(arrays):
        exchange = Exchange([], [array])
        parts = decoded(array.size, 1, EVERYONE, size, None)
        sums = LowRankSum(CODEC, lambda exchange=exchange: exchange, array, array, size, senders,
                          parts, divides=False)  # fmt: skip
        steps.append(sums.steps(MappedWire(network, rank, reads), partial(apply, rank)))
    run_mapped(steps, rng)
    assert {array.tobytes() for array in found} == {expected.tobytes()}
