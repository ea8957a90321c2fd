"""Layer 2, recording stand-in, not NCCL: captured steps on ranks that are processes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("cupy", reason="layer 2 needs CuPy: pip install 'ncclkv[cuda12]'")

from ncclkv.comm.base import Communicator
from ncclkv.comm.host import launch
from tests.conformance.capabilities import at
from tests.conformance.captures_all import CAPTURES, MISUSES
from tests.harness.slow import stretched
from tests.nccl.standin import Seat
from tests.nccl.standin.capabilities import DevicePlace
from tests.nccl.standin.stores import SeatStores

pytestmark = pytest.mark.limit(60)
# A few of each kind, since all of them run on ranks that are threads.
NAMES = (
    "momentum_decay_and_rescaling",
    "a_learning_rate_that_changes",
    "what_the_root_alone_has_is_given_to_all_first",
    "one_rank_cannot",
    "ranks_capture_different_calls",
)


@pytest.fixture(scope="module")
def world() -> Iterator[Communicator]:
    """Return all ranks, on a communicator that every case leaves unchanged."""
    comm = launch.world(timeout=stretched(20.0))
    yield comm
    comm.close()


@pytest.mark.parametrize("update_on", ["every_rank", "root"])
@pytest.mark.parametrize("name", NAMES)
def test_case(name: str, update_on: str, world: Communicator) -> None:
    seat = Seat(world, lazy=True)
    try:
        with at(DevicePlace(seat)), SeatStores(seat, update_on) as create:
            {**CAPTURES, **MISUSES}[name](create)
        seat.check()
    finally:
        seat.device.close()
