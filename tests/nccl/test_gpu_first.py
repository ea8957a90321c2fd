"""Layer 4, on one GPU: the most informative store cases, without an MPI library."""

from __future__ import annotations

import pytest

from tests.conformance import CASES, Case
from tests.conformance.capabilities import at
from tests.conformance.stores import Stores
from tests.nccl.first import FIRST
from tests.nccl.gpu import need_gpu
from tests.nccl.place import GpuPlace

pytestmark = pytest.mark.limit(40)


@pytest.mark.parametrize(
    "case", [c for c in CASES if c.name in FIRST and c.fits(1)], ids=lambda case: case.name
)
def test_case(case: Case) -> None:
    need_gpu()
    if case.needs:
        pytest.importorskip(case.needs, reason=f"{case.needs} is not installed")
    with at(GpuPlace()), Stores("nccl", "every_rank") as create:
        case.body(create)
