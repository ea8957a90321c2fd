"""Layer 2, recording stand-in, not NCCL: the communicator cases over the communicator for GPUs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("cupy", reason="layer 2 needs CuPy: pip install 'ncclkv[cuda12]'")

from ncclkv.comm.base import Communicator
from ncclkv.comm.host import launch
from tests.conformance.capabilities import at
from tests.conformance.communicator_all import CASES, FAILURES
from tests.harness.slow import stretched
from tests.nccl.standin import Seat
from tests.nccl.standin.capabilities import DevicePlace


@pytest.fixture(scope="module")
def world() -> Iterator[Communicator]:
    """Return all ranks, on a communicator that every case leaves unchanged."""
    comm = launch.world(timeout=stretched(20.0))
    yield comm
    comm.close()


@pytest.mark.parametrize("name", CASES)
def test_case(name: str, world: Communicator) -> None:
    if world.size == 1 and name in FAILURES:
        return
    seat = Seat(world, lazy=True)
    try:
        comm = seat.communicator()
        with at(DevicePlace(seat)):
            CASES[name](comm)
        comm.close()
        if not seat.spoilt:
            seat.check()
    finally:
        seat.device.close()
