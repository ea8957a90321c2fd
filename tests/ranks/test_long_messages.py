"""Messages that are longer than a count of MPI, with a small block in the place of 2 GiB."""

from __future__ import annotations

import numpy as np
import pytest
from mpi4py import MPI

from ncclkv.comm.backoff import Backoff
from ncclkv.comm.host import requests
from ncclkv.comm.host.mpi import MpiTransport
from ncclkv.errors import CommAborted

RANKS = MPI.COMM_WORLD.size
BLOCK = 1000
LENGTHS = [BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 5 * BLOCK + 3, 300 * BLOCK + 7]


@pytest.mark.parametrize("length", LENGTHS)
def test_messages_consist_of_blocks(monkeypatch: pytest.MonkeyPatch, length: int) -> None:
    monkeypatch.setattr(requests, "BLOCK", BLOCK)
    transport = MpiTransport(MPI.COMM_WORLD.Dup(), timeout=20)
    rank, after, before = transport.rank, (transport.rank + 1) % RANKS, (transport.rank - 1) % RANKS
    into = np.zeros(length, np.uint8)
    sent = np.random.default_rng(rank).integers(0, 256, length, np.uint8)
    pending = [transport.receive(into, before, 7), transport.send(sent, after, 7)]
    for _ in Backoff(10):
        pending = [each for each in pending if not each.done()]
        if not pending:
            break
    transport.close()
    assert not pending
    expected = np.random.default_rng(before).integers(0, 256, length, np.uint8)
    assert (into == expected).all()


def test_a_refused_argument_is_no_lost_rank() -> None:
    transport = MpiTransport(MPI.COMM_WORLD.Dup(), timeout=20)
    with pytest.raises(CommAborted, match="MPI refuses a message to or from rank 0: "):
        transport.send(np.zeros(3, np.uint8), 0, -5)
    transport.close()
