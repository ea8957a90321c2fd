"""Layers 4 and 5, NCCL on a real GPU: the store cases, on one rank and on several."""

from __future__ import annotations

import pytest
from mpi4py import MPI

from tests.conformance import CASES, Case
from tests.conformance.capabilities import use_buffers
from tests.conformance.stores import Stores
from tests.nccl.first_cases import FIRST
from tests.nccl.gpu import need_gpu
from tests.nccl.gpu_buffers import GpuBuffers

SIZE = MPI.COMM_WORLD.Get_size()
pytestmark = pytest.mark.limit(40)


@pytest.mark.parametrize("update_on", ["every_rank", "root"])
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=case.name, marks=[pytest.mark.first] * (case.name in FIRST))
        for case in CASES
        if case.fits(SIZE)
    ],
)
def test_case(case: Case, update_on: str) -> None:
    need_gpu()
    if case.needs:
        pytest.importorskip(case.needs, reason=f"{case.needs} is not installed")
    with use_buffers(GpuBuffers()), Stores("nccl", update_on) as create:
        case.body(create)
