"""Layer 2, recording stand-in, not NCCL: captured steps on ranks that are processes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("cupy", reason="layer 2 needs CuPy: pip install 'ncclkv[cuda12]'")

from ncclkv.comm.base import Communicator
from ncclkv.comm.host import start
from tests.conformance.capabilities import use_buffers
from tests.conformance.captures_all import CAPTURES, MISUSES
from tests.harness.extent import combinations
from tests.harness.slow import stretched
from tests.nccl.standin import Worker
from tests.nccl.standin.buffers import StandInBuffers
from tests.nccl.standin.stores import StandInStores

pytestmark = pytest.mark.limit(60)
# A few of each kind, since all of them run on ranks that are threads.
NAMES = (
    "momentum_decay_and_rescaling",
    "a_learning_rate_that_changes",
    "values_of_the_root_are_published_before_a_replay",
    "a_capture_that_one_rank_refuses",
    "ranks_capture_different_calls",
)


@pytest.fixture(scope="module")
def world() -> Iterator[Communicator]:
    """Return all ranks, on a communicator that every case leaves unchanged."""
    comm = start.world(timeout=stretched(20.0))
    yield comm
    comm.close()


@pytest.mark.parametrize(("name", "update_on"), combinations(NAMES, ["root", "every_rank"]))
def test_case(name: str, update_on: str, world: Communicator) -> None:
    worker = Worker(world, lazy=True)
    try:
        with use_buffers(StandInBuffers(worker)), StandInStores(worker, update_on) as create:
            {**CAPTURES, **MISUSES}[name](create)
        worker.check()
    finally:
        worker.device.close()
