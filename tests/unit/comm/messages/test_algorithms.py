"""Exchanges of bytes: short ones travel with their length, long ones in a second message."""

from __future__ import annotations

import numpy as np
import pytest

from ncclkv.comm.host import threads
from ncclkv.comm.messages import algorithms
from ncclkv.comm.messages.algorithms import _HEAD_BYTES
from ncclkv.comm.types import Buffer
from ncclkv.testing import run_ranks

LENGTHS = (0, 1, _HEAD_BYTES - 1, _HEAD_BYTES, _HEAD_BYTES + 1, 5 * _HEAD_BYTES)


def data(rank: int, length: int) -> Buffer:
    """Return bytes that differ between ranks and lengths."""
    return (np.arange(length) * 7 + rank + length).astype(np.uint8)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("other", LENGTHS)
def test_bytes_of_any_lengths_arrive(length: int, other: int) -> None:
    own = [data(0, length), data(1, other), data(2, 3)]

    def body() -> list[list[int]]:
        comm = threads.world()
        received: list[Buffer] = []
        comm.control._tags.launch(
            lambda channel: algorithms.gather_bytes(channel, own[comm.rank], received), "bytes"
        ).wait()
        comm.close()
        return [part.tolist() for part in received]

    assert run_ranks(3, body) == [[part.tolist() for part in own]] * 3
