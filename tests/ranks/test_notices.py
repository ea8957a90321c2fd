"""Notices between ranks, such as reports of their calls, which arrive at any poll."""

from __future__ import annotations

import time

import pytest
from mpi4py import MPI

from ncclkv.comm.host.mpi import MpiTransport

pytestmark = pytest.mark.limit(60)
WORLD = MPI.COMM_WORLD


def transport() -> MpiTransport:
    return MpiTransport(WORLD.Dup(), 20)


@pytest.mark.skipif(WORLD.size == 1, reason="one rank sends no notices")
def test_a_notice_that_nobody_received_is_not_the_next_stores() -> None:
    """Check a waiting notice: MPI gives the context of a freed communicator to a new one."""
    for _ in range(8):
        old = transport()
        if old.rank == 0:
            old.post(b"of the old one", range(1, old.size))
        time.sleep(0.02)
        WORLD.barrier()
        old.close()
        new = transport()
        if new.rank == 0:
            new.post(b"of the new one", range(1, new.size))
        WORLD.barrier()
        end = time.monotonic() + 10
        while new.rank and not new.inbox and time.monotonic() < end:
            new.left_ranks()
        time.sleep(0.02)
        assert new.left_ranks() == {}, f"rank {new.rank}"
        expected = [(0, b"of the new one")] if new.rank else []
        assert new.inbox == expected, f"rank {new.rank}"
        WORLD.barrier()
        new.close()
