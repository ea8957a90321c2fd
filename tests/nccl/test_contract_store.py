"""Layer 2, recording stand-in, not NCCL: the store cases over stores in a GPU's memory."""

from __future__ import annotations

import pytest

pytest.importorskip("cupy", reason="layer 2 needs CuPy: pip install 'ncclkv[cuda12]'")

from tests.cases import CASES, Case
from tests.cases.place import at
from tests.nccl.standin import Seat, run_seats
from tests.nccl.standin.place import DevicePlace
from tests.nccl.standin.stores import SeatStores

pytestmark = pytest.mark.limit(30)
PLACEMENTS = ("every_rank", "root")
RUNS = [
    pytest.param(case, size, id=f"{case.name}-{size}")
    for case in CASES
    for size in (1, 2, 3, 4)
    if case.fits(size)
]


@pytest.mark.parametrize("update_on", PLACEMENTS)
@pytest.mark.parametrize(("case", "size"), RUNS)
def test_case(case: Case, size: int, update_on: str) -> None:
    if case.needs:
        pytest.importorskip(case.needs, reason=f"{case.needs} is not installed")

    def body(seat: Seat) -> None:
        with at(DevicePlace(seat)), SeatStores(seat, update_on) as create:
            case.body(create)

    run_seats(size, body, lazy=True)
