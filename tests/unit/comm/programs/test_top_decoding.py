"""Sums of the largest elements of nodes: their numbers and bytes, whichever rank has a key."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ncclkv.comm.destinations import EVERYONE, Owners, Root
from ncclkv.comm.programs.extents import KeyExtents
from ncclkv.comm.programs.node_sum import NodeForm, NodeSum, node_form
from ncclkv.comm.programs.top_decoding import TopDecoding
from ncclkv.comm.transport import Steps
from ncclkv.comm.types import Buffer
from ncclkv.comm.wire import Limits, Range
from ncclkv.compress.topk import TopK
from tests.unit.comm.memory_wire import MappedWire, MemoryWire, Network, run, run_mapped

ENTRIES = [(0, 50), (64, 264), (320, 321), (384, 1400), (1408, 1500)]
COUNT = 1536
CODEC = TopK(ratio=0.2)
UNTOUCHED = -77.0
"""A number in arrays that receive a sum, before it."""

LAYOUTS = (
    [[0], [1]],
    [[0, 1], [2, 3]],
    [[0, 2], [1, 3], [4, 5]],
    [[0, 1, 2], [3]],
    [[0, 1, 2], [3, 4, 5, 6]],
)


def keys_of(extents: KeyExtents, bounds: Range) -> list[Range]:
    """Return the keys of a slice, counted from its first element."""
    lo, hi = bounds
    return [(first - lo, end - lo) for first, end in extents.within(bounds)] if lo < hi else []


def encoder(bounds: Range, payload: Buffer) -> Callable[[Sequence[Buffer]], None]:
    """Return a function that adds a slice of arrays, and encodes each of its keys."""
    extents = KeyExtents(CODEC, ENTRIES)

    def encode(parts: Sequence[Buffer]) -> None:
        total, start = np.add.reduce(parts, axis=0), 0
        for lo, hi in keys_of(extents, bounds):
            stop = start + CODEC.nbytes(hi - lo)
            CODEC.encode(total[lo:hi], np.zeros(hi - lo, np.float32), payload[start:stop])
            start = stop

    return encode


def model(form: NodeForm, gradients: Sequence[Buffer]) -> Buffer:
    """Return the sum of what the nodes send, divided by the count of ranks that send."""
    total: Buffer = np.zeros(COUNT, np.float32)
    for ranks in form.nodes:
        arrays = [gradients[rank] for rank in ranks if rank in form.senders]
        if not arrays:
            continue
        owed = np.add.reduce(arrays, axis=0)
        for lo, hi in ENTRIES:
            kept = max(1, round(0.2 * (hi - lo)))
            chosen = lo + np.argsort(-np.abs(owed[lo:hi]), kind="stable")[:kept]
            total[chosen] += owed[chosen]
    return total / np.float32(len(form.senders))


class Ranks:
    """The ranks of a sum: what they receive, and the ranges of their updates."""

    def __init__(self, form: NodeForm, gradients: Sequence[Buffer]) -> None:
        self.form, self.gradients = form, gradients
        self.received = [np.full(COUNT, UNTOUCHED, np.float32) for _ in gradients]
        self.ranges: list[list[Range]] = [[] for _ in gradients]

    def steps(self, rank: int, wire: MemoryWire) -> Steps:
        """Return the program of a rank."""
        form, bounds = self.form, self.form.slice_of(rank)
        begin, end = form.extents.codes(bounds)
        payload = np.full(end - begin, 0xFF, np.uint8)
        packed = np.full(form.packed(bounds) if form.packs else 0, 0xFF, np.uint8)
        extents, senders = KeyExtents(CODEC, ENTRIES), len(form.sending)
        result = TopDecoding(extents, senders, self.received[rank], len(form.senders))
        encode = encoder(bounds, payload)
        made = NodeSum(self.gradients[rank], encode, payload, result, form, packed)
        return made.steps(wire, lambda lo, hi: self.ranges[rank].append((lo, hi)))


def drawn_form(data: st.DataObject, nodes: Sequence[Sequence[int]]) -> NodeForm:
    """Draw a sum: who sends, where it goes, and which keys each index on a node has."""
    size = sum(map(len, nodes))
    owners = min(map(len, nodes))
    starts = st.sampled_from([0, *(lo for lo, _ in ENTRIES), COUNT])
    cuts = sorted(data.draw(st.lists(starts, min_size=owners - 1, max_size=owners - 1)))
    slices = data.draw(st.permutations([*pairwise([0, *cuts, COUNT])]))
    inner = st.lists(st.integers(0, COUNT), min_size=size - 1, max_size=size - 1)
    to = data.draw(
        st.sampled_from([EVERYONE, Root(size - 1), Owners([0, *sorted(data.draw(inner)), COUNT])])
    )
    senders = data.draw(st.sets(st.integers(0, size - 1), min_size=1))
    extents = KeyExtents(CODEC, ENTRIES)
    shared = data.draw(st.booleans())
    return node_form(extents, slices, frozenset(senders), to, nodes, shared=shared)


@settings(deadline=None)
@given(data=st.data())
@pytest.mark.parametrize("nodes", LAYOUTS, ids=str)
@pytest.mark.parametrize("mapped", [False, True])
def test_nodes_send_the_largest_of_their_sums(
    nodes: Sequence[Sequence[int]], mapped: bool, data: st.DataObject
) -> None:
    form, size = drawn_form(data, nodes), sum(map(len, nodes))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    gradients = [rng.standard_normal(COUNT).astype(np.float32) for _ in range(size)]
    ranks, network = Ranks(form, gradients), Network(size)
    if mapped:
        arrays: dict[int, dict[int, Buffer]] = {}
        mapped_wires = [MappedWire(network, rank, arrays) for rank in range(size)]
        run_mapped([ranks.steps(rank, wire) for rank, wire in enumerate(mapped_wires)], rng)
    else:
        wires = [MemoryWire(network, rank, Limits(0, 1 << 30)) for rank in range(size)]
        run(wires, [ranks.steps(rank, wire) for rank, wire in enumerate(wires)])
        assert [network.sent.get(rank, 0) for rank in range(size)] == [
            form.sent(rank) for rank in range(size)
        ]
    check(form, ranks, model(form, gradients))


def check(form: NodeForm, ranks: Ranks, total: Buffer) -> None:
    """Fail unless each rank has written and updated its elements once, and no others."""
    covered = np.zeros(COUNT, bool)
    for rank, found in enumerate(ranks.received):
        lo, hi = form.decoded[rank] if form.shared else (0, COUNT)
        written: Buffer = np.zeros(COUNT, np.int64)
        for first, end in ranks.ranges[rank]:
            written[first:end] += 1
        assert (written[lo:hi] == 1).all()
        assert written.sum() == hi - lo
        assert found[lo:hi].tobytes() == total[lo:hi].tobytes()
        assert (found[written == 0] == UNTOUCHED).all()
        covered[lo:hi] = True
    assert covered.all()


def test_a_payload_goes_to_each_other_node_once() -> None:
    """Check that a rank sends its payload to other nodes, and what it has read to its own."""
    nodes, extents = [[0, 1], [2, 3], [4, 5]], KeyExtents(CODEC, ENTRIES)
    senders, slices = frozenset(range(6)), [(0, 384), (384, COUNT)]
    shared = node_form(extents, slices, senders, EVERYONE, nodes, shared=True)
    apart = node_form(extents, slices, senders, EVERYONE, nodes, shared=False)
    payloads = [8 * (10 + 40 + 1), 8 * (203 + 18)]
    for rank in range(6):
        own = payloads[rank % 2]
        lo, hi = slices[1 - rank % 2]
        assert shared.sent(rank) == 4 * (hi - lo) + 2 * own
        assert apart.sent(rank) - shared.sent(rank) == 3 * own
