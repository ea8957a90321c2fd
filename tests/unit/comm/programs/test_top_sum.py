"""Sums of the largest elements: their numbers and bytes, on any number of ranks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import pytest

from ncclkv.comm.destinations import EVERYONE, Owners, Root, To
from ncclkv.comm.programs.decoded import decoded
from ncclkv.comm.programs.extents import KeyExtents
from ncclkv.comm.programs.top_decoding import TopDecoding
from ncclkv.comm.programs.top_sum import TopSum
from ncclkv.comm.types import Buffer
from ncclkv.comm.wire import Limits
from ncclkv.compress.topk import TopK
from ncclkv.kernels.host.largest import add_largest
from tests.unit.comm.memory_wire import MemoryWire, Network, run

ENTRIES = [(0, 50), (64, 264), (320, 321)]
COUNT, SIZE = 384, 5
CODEC = TopK(ratio=0.2)
LIMITS = Limits(0, 1 << 30)


def payload_of(gradient: Buffer) -> Buffer:
    parts = []
    for lo, hi in ENTRIES:
        part = np.empty(CODEC.nbytes(hi - lo), np.uint8)
        CODEC.encode(gradient[lo:hi], np.zeros(hi - lo, np.float32), part)
        parts.append(part)
    return np.concatenate(parts)


def total_of(payloads: Sequence[Buffer]) -> Buffer:
    """Return the sum of payloads, added in their order."""
    total: Buffer = np.zeros(COUNT, np.float32)
    start = 0
    for lo, hi in ENTRIES:
        stop = start + CODEC.nbytes(hi - lo)
        for payload in payloads:
            add_largest(payload[start:stop], total[lo:hi])
        start = stop
    return total


@pytest.mark.parametrize(
    ("to", "nodes"),
    [
        (EVERYONE, None),
        (EVERYONE, [[0, 2], [1, 3, 4]]),
        (Root(3), None),
        (Owners([0, 30, 30, 200, 321, COUNT]), None),
    ],
)
def test_ranks_add_what_they_decode(to: To, nodes: list[list[int]] | None) -> None:
    rng = np.random.default_rng(1)
    payloads = [payload_of(rng.standard_normal(COUNT).astype(np.float32)) for _ in range(SIZE)]
    senders = frozenset([0, 1, 3, 4])
    total = total_of([payloads[rank] for rank in sorted(senders)]) / np.float32(len(senders))
    network = Network(SIZE)
    wires = [MemoryWire(network, rank, LIMITS) for rank in range(SIZE)]
    parts = decoded(COUNT, 1, to, SIZE, nodes)
    made, outs, steps = [], [], []
    ranges: list[list[tuple[int, int]]] = [[] for _ in wires]
    for rank, wire in enumerate(wires):
        own, out = np.zeros_like(payloads[0]), np.full(COUNT, -7.0, np.float32)
        encode = partial(np.copyto, own, payloads[rank]) if rank in senders else None
        result = TopDecoding(KeyExtents(CODEC, ENTRIES), len(senders), out, len(senders))
        top = TopSum(encode, own, result, senders, parts)
        made.append(top)
        outs.append(out)
        steps.append(top.steps(wire, lambda lo, hi, found=ranges[rank]: found.append((lo, hi))))
    run(wires, steps)
    for rank, (lo, hi) in enumerate(parts.parts):
        assert outs[rank][lo:hi].tobytes() == total[lo:hi].tobytes()
        assert (outs[rank][:lo] == -7).all()
        assert (outs[rank][hi:] == -7).all()
        assert ranges[rank] == ([(lo, hi)] if lo < hi else [])
        assert network.sent.get(rank, 0) == made[rank].sent(rank)
