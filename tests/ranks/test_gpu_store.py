"""Layers 4 and 5, NCCL on a real GPU: the store cases, on one rank and on several.

With the updates on rank 0, the cases run on a stream that was chosen with `cupy.cuda.Stream.use`.
"""

from __future__ import annotations

from contextlib import nullcontext

import pytest
from mpi4py import MPI

from tests.conformance import CASES, Case
from tests.conformance.capabilities import use_buffers
from tests.conformance.stores import Stores
from tests.nccl.first_cases import FIRST
from tests.nccl.gpu_buffers import GpuBuffers
from tests.nccl.gpu_current import chosen, kept, rank_device

__all__ = ["rank_device"]

SIZE = MPI.COMM_WORLD.Get_size()
pytestmark = pytest.mark.limit(40)


@pytest.mark.parametrize("update_on", ["every_rank", "root"])
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=case.name, marks=[pytest.mark.first] * (case.name in FIRST))
        for case in CASES
        if case.fits(SIZE) and not case.in_host_memory
    ],
)
@pytest.mark.usefixtures("rank_device")
def test_case(case: Case, update_on: str) -> None:
    if case.needs:
        pytest.importorskip(case.needs, reason=f"{case.needs} is not installed")
    # torch's tensors are used on torch's current stream alone.
    on_chosen = chosen("use") if update_on == "root" and not case.needs else nullcontext()
    stores = Stores("nccl", update_on)
    with use_buffers(GpuBuffers()), on_chosen, kept(case.name), stores as create:
        case.body(create)
