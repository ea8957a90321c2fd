"""The communicator cases over MPI, on all ranks of the job."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ncclkv.comm.base import Communicator
from ncclkv.comm.host import launch
from tests.conformance.capabilities import in_rank_order
from tests.conformance.communicator_all import CASES, FAILURES, IN_ORDER
from tests.harness.slow import stretched


@pytest.fixture(scope="module")
def world() -> Iterator[Communicator]:
    """Return all ranks, on a communicator that every case leaves unchanged."""
    comm = launch.world(timeout=stretched(20.0))
    yield comm
    comm.close()


@pytest.mark.parametrize("name", CASES)
def test_mpi(name: str, world: Communicator) -> None:
    if world.size > 1 or name not in FAILURES:
        CASES[name](world)


@pytest.mark.parametrize("name", IN_ORDER)
def test_mpi_in_rank_order(name: str, world: Communicator) -> None:
    own = world.duplicate()
    own.reproducible = True
    with in_rank_order():
        CASES[name](own)
    own.close()
