"""Sums of codes: their numbers and bytes in each form, on any number of ranks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ncclkv.comm.destinations import EVERYONE, Owners, Root, To
from ncclkv.comm.programs.coded_sum import CodedSum, form_of
from ncclkv.comm.types import Buffer
from ncclkv.comm.wire import Limits
from ncclkv.compress.coding import BLOCK
from ncclkv.compress.entries import Padding, encode_entries
from ncclkv.compress.quantiser import Quantiser
from tests.codecs import MODELS, quantiser
from tests.unit.comm.memory_wire import MemoryWire, Network, run

LIMITS = Limits(0, 1 << 30)
SHARED = -77.0
"""A number in arrays that receive a sum, before it."""


def encoded(
    codec: Quantiser, entries: Sequence[tuple[int, int]], gradient: Buffer, payload: Buffer
) -> None:
    """Encode a gradient, of which nothing is owed before."""
    parts = [gradient[lo:hi] for lo, hi in entries]
    encode_entries(codec, entries, parts, [np.zeros_like(part) for part in parts], payload)


def sums(
    codec: Quantiser,
    gradients: Sequence[Buffer],
    entries: Sequence[tuple[int, int]],
    to: To = EVERYONE,
    *,
    senders: Sequence[int] | None = None,
    nodes: Sequence[Sequence[int]] | None = None,
    divides: bool = False,
) -> tuple[list[Buffer], list[list[tuple[int, int]]]]:
    """Return what each rank receives, and the ranges of its updates; check the bytes sent."""
    size, count = len(gradients), gradients[0].size
    ranks = frozenset(range(size) if senders is None else senders)
    form = form_of(codec, count, ranks, to, size, nodes)
    network = Network(size)
    wires = [MemoryWire(network, rank, LIMITS) for rank in range(size)]
    received, steps, ranges = [], [], []
    for rank, wire in enumerate(wires):
        payload = np.full(codec.nbytes(count), 0xFF, np.uint8)
        encode = partial(encoded, codec, entries, gradients[rank], payload)
        lo, hi = form.decoded[rank]
        packed = np.zeros(form.packed(hi - lo) if form.two_steps else 0, np.uint8)
        out = np.full(count, SHARED, np.float32)
        made = CodedSum(
            codec,
            encode if rank in ranks else None,
            payload,
            Padding(entries, count),
            out,
            form,
            divides,
            packed,
        )
        found: list[tuple[int, int]] = []
        received.append(out)
        ranges.append(found)
        steps.append(made.steps(wire, lambda lo, hi, found=found: found.append((lo, hi))))
    run(wires, steps)
    assert [network.sent.get(rank, 0) for rank in range(size)] == [
        form.sent(rank) for rank in range(size)
    ]
    return received, ranges


def model(name: str, gradients: Sequence[Buffer], entries: Sequence[tuple[int, int]]) -> Buffer:
    """Return the sum of what the senders of some gradients send; padding is 0."""
    total: Buffer = np.zeros(gradients[0].size, np.float32)
    for lo, hi in entries:
        counts: Buffer = np.zeros(hi - lo, np.int64)
        for gradient in gradients:
            sender = MODELS[name](0.5, hi - lo)
            counts += sender.push(gradient[lo:hi])[1]
        total[lo:hi] = counts.astype(np.float32) * np.float32(sender.step)
    return total


def gradients_of(rng: np.random.Generator, size: int, count: int) -> list[Buffer]:
    return [rng.standard_normal(count).astype(np.float32) for _ in range(size)]


def joined(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return ranges that follow each other as one."""
    found: list[tuple[int, int]] = []
    for lo, hi in sorted(ranges):
        if found and found[-1][1] == lo:
            lo = found.pop()[0]
        found.append((lo, hi))
    return found


@settings(deadline=None)
@given(data=st.data())
@pytest.mark.parametrize("name", [*MODELS])
def test_sums_are_those_of_the_model_at_every_destination(name: str, data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 9))
    count = 64 * data.draw(st.sampled_from([1, 3, 40, 1100, 2060]))
    end = data.draw(st.integers(count - 63, count))
    entries = [(0, count // 128 * 64 - 5), (count // 128 * 64, end)] if count > 128 else [(0, end)]
    codec, rng = quantiser(name), np.random.default_rng(data.draw(st.integers(0, 99)))
    gradients = gradients_of(rng, size, count)
    total = model(name, gradients, entries)
    inner = sorted(
        data.draw(st.lists(st.integers(0, count // 16), min_size=size - 1, max_size=size - 1))
    )
    bounds = [0, *(16 * bound for bound in inner), count]
    for to in EVERYONE, Root(size - 1), Owners(bounds):
        received, ranges = sums(codec, gradients, entries, to)
        for rank, out in enumerate(received):
            lo, hi = to.part(rank, count) if to.receives(rank) else (0, 0)
            assert out[lo:hi].tobytes() == total[lo:hi].tobytes()
            assert (out[:lo] == SHARED).all()
            assert (out[hi:] == SHARED).all()
            assert joined(ranges[rank]) == ([(lo, hi)] if lo < hi else [])


@pytest.mark.parametrize("name", [*MODELS])
def test_ranks_that_share_the_result_decode_slices_of_it(name: str) -> None:
    nodes = [[0, 3], [1, 2, 4]]
    entries = [(0, 3 * BLOCK + 100)]
    count = 3 * BLOCK + 128
    gradients = gradients_of(np.random.default_rng(1), 5, count)
    total = model(name, gradients, entries)
    received, _ = sums(quantiser(name), gradients, entries, nodes=nodes)
    for node in nodes:
        outs = np.array([received[rank] for rank in node])
        written = outs != SHARED
        assert (written.sum(axis=0) == 1).all()
        assert np.where(written, outs, 0).sum(axis=0).tobytes() == total.tobytes()


@pytest.mark.parametrize("count", [64, 70_016, 140_032])
@pytest.mark.parametrize("name", [*MODELS])
def test_ranks_that_rest_are_not_counted(name: str, count: int) -> None:
    gradients = gradients_of(np.random.default_rng(2), 5, count)
    total = model(name, [gradients[rank] for rank in (0, 2, 3)], [(0, count)])
    received, _ = sums(quantiser(name), gradients, [(0, count)], senders=[0, 2, 3], divides=True)
    for out in received:
        assert out.tobytes() == (total / np.float32(3)).tobytes()


BITS = {
    "2bit": {2: 2, 3: 4, 4: 4.5, 8: 1.75 + 7, 16: 1.875 + 7.5},
    "1bit": {2: 1, 3: 2, 4: 3, 8: 0.875 + 3.5, 16: 0.9375 + 7.5},
}
"""Bits that a rank sends for an element, by the number of ranks."""


@pytest.mark.parametrize("name", [*BITS])
def test_a_rank_sends_few_bits_for_an_element(name: str) -> None:
    for size, bits in BITS[name].items():
        count = size * 32 * 1024
        form = form_of(quantiser(name), count, frozenset(range(size)), EVERYONE, size, None)
        for rank in range(size):
            assert form.sent(rank) * 8 / count == bits


def test_shares_begin_at_whole_words() -> None:
    form = form_of(quantiser("1bit"), 700_000, frozenset(range(9)), EVERYONE, 9, None)
    assert form.two_steps
    assert all(lo % 32 == 0 for lo, _ in form.decoded)
    assert all(end == begin for (_, end), (begin, _) in pairwise(form.decoded))
