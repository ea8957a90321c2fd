"""Layer 2, recording stand-in, not NCCL: the communicator cases over the communicator for GPUs."""

from __future__ import annotations

import pytest

pytest.importorskip("cupy", reason="layer 2 needs CuPy: pip install 'ncclkv[cuda12]'")

from tests.conformance.capabilities import at
from tests.conformance.communicator_all import CASES, FAILURES
from tests.conformance.covering import some_or_all
from tests.nccl.standin import Seat, run_seats
from tests.nccl.standin.capabilities import DevicePlace

pytestmark = pytest.mark.limit(30)
MODE = {False: "prompt", True: "lazy"}
SIZES = {False: some_or_all((3,), (1, 3)), True: some_or_all((1, 2, 3), (1, 2, 3, 4))}
"""Numbers of ranks, prompt and lazy: a lazy device finds more faults."""

RUNS = [
    pytest.param(n, lazy, id=f"{n}-{MODE[lazy]}") for lazy, sizes in SIZES.items() for n in sizes
]
ORDINARY = [name for name in CASES if name not in FAILURES]


def over_the_stand_in(size: int, name: str, lazy: bool) -> None:
    """Run a case on so many threads, each with its own device."""

    def body(seat: Seat) -> None:
        comm = seat.communicator()
        with at(DevicePlace(seat)):
            CASES[name](comm)
        comm.close()

    run_seats(size, body, lazy=lazy)


@pytest.mark.parametrize(("size", "lazy"), RUNS)
@pytest.mark.parametrize("name", ORDINARY)
def test_case(name: str, size: int, lazy: bool) -> None:
    over_the_stand_in(size, name, lazy)


@pytest.mark.parametrize("lazy", MODE, ids=MODE.get)
@pytest.mark.parametrize("name", sorted(FAILURES))
def test_failure(name: str, lazy: bool) -> None:
    over_the_stand_in(3, name, lazy)
