"""Layer 2, recording stand-in, not NCCL: the communicator cases over the communicator for GPUs.

The long cases run on ranks that are threads, and here in a complete run.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from mpi4py import MPI

pytest.importorskip("cupy", reason="layer 2 needs CuPy: pip install 'ncclkv[cuda12]'")

from ncclkv.comm.base import Communicator
from ncclkv.comm.host import start
from tests.conformance.capabilities import use_buffers
from tests.conformance.communicator_all import CASES, FAILURES
from tests.conformance.covering import communicator_cases
from tests.harness.slow import stretched
from tests.nccl.standin import Worker
from tests.nccl.standin.buffers import StandInBuffers


@pytest.fixture(scope="module")
def world() -> Iterator[Communicator]:
    """Return all ranks, on a communicator that every case leaves unchanged."""
    comm = start.world(timeout=stretched(20.0))
    yield comm
    comm.close()


@pytest.mark.parametrize(
    "name", communicator_cases(CASES, "stand-in-ranks", MPI.COMM_WORLD.Get_size())
)
def test_case(name: str, world: Communicator) -> None:
    if world.size == 1 and name in FAILURES:
        return
    worker = Worker(world, lazy=True)
    try:
        comm = worker.communicator()
        with use_buffers(StandInBuffers(worker)):
            CASES[name](comm)
        comm.close()
        if not worker.broken_on_purpose:
            worker.check()
    finally:
        worker.device.close()
