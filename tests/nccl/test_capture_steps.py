"""Layer 2, recording stand-in, not NCCL: replayed steps against the same steps called each time."""

from __future__ import annotations

import pytest

pytest.importorskip("cupy", reason="layer 2 needs CuPy: pip install 'ncclkv[cuda12]'")

from tests.conformance.capabilities import at
from tests.conformance.captures_all import CAPTURES
from tests.conformance.covering import some_or_all
from tests.nccl.standin import Seat, run_seats
from tests.nccl.standin.capabilities import DevicePlace
from tests.nccl.standin.stores import SeatStores

pytestmark = pytest.mark.limit(30)


@pytest.mark.parametrize("size", some_or_all([1, 3], [1, 2, 3, 4]))
@pytest.mark.parametrize("update_on", ["every_rank", "root"])
@pytest.mark.parametrize("name", CAPTURES)
def test_case(name: str, update_on: str, size: int) -> None:
    def body(seat: Seat) -> None:
        with at(DevicePlace(seat)), SeatStores(seat, update_on) as create:
            CAPTURES[name](create)

    run_seats(size, body, lazy=True)
