"""The communicator cases over MPI, on all ranks of the job."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from mpi4py import MPI

from ncclkv.comm.base import Communicator
from ncclkv.comm.host import start
from tests.conformance.capabilities import require_rank_order
from tests.conformance.communicator_all import CASES, FAILURES, IN_ORDER
from tests.conformance.covering import communicator_cases, layout_of_ranks
from tests.harness.slow import stretched
from tests.ranks.conftest import on_several_hosts

SIZE = MPI.COMM_WORLD.Get_size()
LAYOUT = layout_of_ranks(several_hosts=on_several_hosts(MPI.COMM_WORLD))


@pytest.fixture(scope="module")
def world() -> Iterator[Communicator]:
    """Return all ranks, on a communicator that every case leaves unchanged."""
    comm = start.world(timeout=stretched(20.0))
    yield comm
    comm.close()


@pytest.mark.parametrize("name", communicator_cases(CASES, LAYOUT, SIZE))
def test_mpi(name: str, world: Communicator) -> None:
    if world.size > 1 or name not in FAILURES:
        CASES[name](world)


@pytest.mark.parametrize("name", communicator_cases(IN_ORDER, LAYOUT, SIZE))
def test_mpi_in_rank_order(name: str, world: Communicator) -> None:
    own = world.duplicate()
    own.reproducible = True
    with require_rank_order():
        CASES[name](own)
    own.close()
