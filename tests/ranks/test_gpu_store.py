"""Layers 4 and 5, NCCL on a real GPU: the store cases, on one rank and on several."""

from __future__ import annotations

import pytest
from mpi4py import MPI

from tests.cases import CASES, Case
from tests.cases.place import at
from tests.cases.stores import Stores
from tests.nccl.gpu import need_gpu
from tests.nccl.place import GpuPlace

SIZE = MPI.COMM_WORLD.Get_size()
pytestmark = pytest.mark.limit(120)


@pytest.mark.parametrize("update_on", ["every_rank", "root"])
@pytest.mark.parametrize("case", [c for c in CASES if c.fits(SIZE)], ids=lambda case: case.name)
def test_case(case: Case, update_on: str) -> None:
    need_gpu()
    if case.needs:
        pytest.importorskip(case.needs, reason=f"{case.needs} is not installed")
    with at(GpuPlace()), Stores("nccl", update_on) as create:
        case.body(create)
