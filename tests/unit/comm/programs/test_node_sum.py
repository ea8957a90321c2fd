"""Sums with one sender a node: their numbers and bytes, on nodes of equal and of other sizes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ncclkv.comm.destinations import EVERYONE, Owners, Root, To
from ncclkv.comm.programs.decoding import Decoding
from ncclkv.comm.programs.extents import Words
from ncclkv.comm.programs.node_sum import NodeForm, NodeSum, node_form, places
from ncclkv.comm.two_step import slices
from ncclkv.comm.types import Buffer
from ncclkv.comm.wire import Limits
from ncclkv.compress.entries import Padding, encode_entries
from ncclkv.compress.quantiser import Quantiser
from tests.codecs import MODELS, quantiser
from tests.unit.comm.memory_wire import MemoryWire, Network, run

LIMITS = Limits(0, 1 << 30)
UNTOUCHED = -77.0
"""A number in arrays that receive a sum, before it."""

LAYOUTS = (
    [[0], [1]],
    [[0, 1], [2, 3]],
    [[0, 2], [1, 3], [4, 5]],
    [[0, 1, 2], [3]],
    [[0, 1, 2], [3, 4]],
    [[0, 1], [2, 3], [4, 5], [6, 7]],
)


def form_on(
    nodes: Sequence[Sequence[int]],
    codec: Quantiser,
    count: int,
    to: To = EVERYONE,
    senders: Sequence[int] | None = None,
    *,
    shared: bool = False,
) -> NodeForm:
    """Return the form of a sum of an array that is a whole bucket."""
    ranks = frozenset(places(nodes) if senders is None else senders)
    cuts = slices(count, min(map(len, nodes)), codec.unit)
    return node_form(Words(codec), cuts, ranks, to, nodes, shared=shared)


def sums(
    form: NodeForm, gradients: Sequence[Buffer], end: int, *, divides: bool = False
) -> tuple[list[Buffer], list[list[tuple[int, int]]]]:
    """Return what each rank receives, and the ranges of its updates; check the bytes sent.

    One key has the elements up to `end`; the others are padding.
    """
    size, count = len(gradients), gradients[0].size
    assert isinstance(form.extents, Words)
    codec = form.extents.codec
    assert isinstance(codec, Quantiser)
    network = Network(size)
    wires = [MemoryWire(network, rank, LIMITS) for rank in range(size)]
    received, steps, ranges = [], [], []
    for rank, wire in enumerate(wires):
        lo, hi = form.slice_of(rank)
        payload = np.full(codec.nbytes(hi - lo), 0xFF, np.uint8)

        def encode(
            parts: Sequence[Buffer],
            bounds: tuple[int, int] = (0, max(min(hi, end) - lo, 0)),
            payload: Buffer = payload,
        ) -> None:
            total = parts[0].copy()
            for part in parts[1:]:
                total += part
            residual = np.zeros(bounds[1], np.float32)
            encode_entries(codec, [bounds], [total[: bounds[1]]], [residual], payload)

        packed = np.full(form.packed((lo, hi)) if form.packs else 0, 0xFF, np.uint8)
        out = np.full(count, UNTOUCHED, np.float32)
        padding = Padding([(0, end)], count)
        divisor = len(form.senders) if divides else None
        result = Decoding(codec, len(form.sending), padding, out, divisor)
        made = NodeSum(gradients[rank], encode, payload, result, form, packed)
        found: list[tuple[int, int]] = []
        received.append(out)
        ranges.append(found)
        steps.append(made.steps(wire, lambda lo, hi, found=found: found.append((lo, hi))))
    run(wires, steps)
    assert [network.sent.get(rank, 0) for rank in range(size)] == [
        form.sent(rank) for rank in range(size)
    ]
    return received, ranges


def model(form: NodeForm, name: str, gradients: Sequence[Buffer], end: int) -> Buffer:
    """Return the sum of what the nodes send."""
    total: Buffer = np.zeros(gradients[0].size, np.float32)
    counts: Buffer = np.zeros(end, np.int64)
    for ranks in form.nodes:
        arrays = [gradients[rank] for rank in ranks if rank in form.senders]
        sender = MODELS[name](0.5, end)
        if arrays:
            added = arrays[0].copy()
            for array in arrays[1:]:
                added += array
            counts += sender.push(added[:end])[1]
    total[:end] = counts.astype(np.float32) * np.float32(sender.step)
    return total


def gradients_of(seed: int, size: int, count: int) -> list[Buffer]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(count).astype(np.float32) for _ in range(size)]


def cover(ranges: Sequence[tuple[int, int]], lo: int, hi: int) -> bool:
    """Return whether ranges have each element from `lo` to `hi` once, and no other."""
    filled = sorted(ranges)
    joined = all(end == begin for (_, end), (begin, _) in pairwise(filled))
    return joined and (filled[0][0], filled[-1][1]) == (lo, hi) if filled else lo == hi


@settings(deadline=None)
@given(data=st.data())
@pytest.mark.parametrize("name", [*MODELS])
def test_sums_are_those_of_one_sender_a_node(name: str, data: st.DataObject) -> None:
    nodes = data.draw(st.sampled_from(LAYOUTS))
    size = sum(map(len, nodes))
    count = 64 * data.draw(st.sampled_from([1, 3, 40, 1100, 4400]))
    end = data.draw(st.integers(count - 63, count))
    gradients = gradients_of(data.draw(st.integers(0, 99)), size, count)
    codec = quantiser(name)
    inner = st.lists(st.integers(0, count // 16), min_size=size - 1, max_size=size - 1)
    bounds = [0, *(16 * bound for bound in sorted(data.draw(inner))), count]
    to = data.draw(st.sampled_from([EVERYONE, Root(size - 1), Owners(bounds)]))
    form = form_on(nodes, codec, count, to)
    total = model(form, name, gradients, end)
    received, ranges = sums(form, gradients, end)
    for rank, out in enumerate(received):
        lo, hi = to.part(rank, count) if to.receives(rank) else (0, 0)
        assert out[lo:hi].tobytes() == total[lo:hi].tobytes()
        assert (out[:lo] == UNTOUCHED).all()
        assert (out[hi:] == UNTOUCHED).all()
        assert cover(ranges[rank], lo, hi)


@pytest.mark.parametrize("count", [128, 40_000, 560_000])
@pytest.mark.parametrize("nodes", LAYOUTS, ids=str)
def test_ranks_that_share_the_result_write_their_slices(
    nodes: Sequence[Sequence[int]], count: int
) -> None:
    gradients = gradients_of(3, sum(map(len, nodes)), count)
    form = form_on(nodes, quantiser("2bit"), count, shared=True)
    received, ranges = sums(form, gradients, count)
    total = model(form, "2bit", gradients, count)
    for ranks in nodes:
        assert cover([each for rank in ranks for each in ranges[rank]], 0, count)
        written = np.array([received[rank] for rank in ranks])
        written[written == UNTOUCHED] = 0
        assert written.sum(axis=0).tobytes() == total.tobytes()


@pytest.mark.parametrize("senders", [[0, 1, 3], [2], [0, 4, 5], [4, 5]], ids=str)
@pytest.mark.parametrize("name", [*MODELS])
def test_a_node_rests_if_all_its_ranks_rest(name: str, senders: Sequence[int]) -> None:
    gradients = gradients_of(4, 6, 70_016)
    form = form_on([[0, 1], [2, 3], [4, 5]], quantiser(name), 70_016, senders=senders)
    received, _ = sums(form, gradients, 70_000, divides=True)
    total = model(form, name, gradients, 70_000) / np.float32(len(senders))
    for out in received:
        assert out.tobytes() == total.tobytes()


BITS = {(2, 2): 1, (2, 4): 0.5, (3, 2): 2, (4, 2): 2.25}
"""Bits of an element that a rank sends to other nodes, by nodes and ranks of each, with 2bit."""


@pytest.mark.parametrize(("nodes", "ranks"), [*BITS])
def test_a_rank_sends_few_bits_to_other_nodes(nodes: int, ranks: int) -> None:
    layout = [[*range(ranks * each, ranks * (each + 1))] for each in range(nodes)]
    count = nodes * ranks * 128 * 1024
    form = form_on(layout, quantiser("2bit"), count, shared=True)
    inside = 32 * (ranks - 1) / ranks
    for rank in range(nodes * ranks):
        assert form.sent(rank) * 8 / count == BITS[nodes, ranks] + inside


def test_without_shared_memory_a_rank_gives_its_node_packed_counts() -> None:
    layout, count = [[0, 1, 2], [3, 4, 5]], 3 * 64 * 1024
    shared = form_on(layout, quantiser("2bit"), count, shared=True)
    apart = form_on(layout, quantiser("2bit"), count)
    for rank in range(6):  # 4 bits of a third of the elements, to 2 neighbours
        assert apart.sent(rank) - shared.sent(rank) == 2 * (count // 3) // 2
