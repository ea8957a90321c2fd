"""Layer 4, on one GPU: the most informative store cases, without an MPI library.

The cases of compression run in a store of one process, whose arrays send by themselves, too.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.conformance import CASES, Case
from tests.conformance.capabilities import use_buffers
from tests.conformance.stores import Stores
from tests.nccl.alone_cases import ALONE_CASES
from tests.nccl.first_cases import FIRST
from tests.nccl.gpu import need_gpu
from tests.nccl.gpu_buffers import GpuBuffers

pytestmark = pytest.mark.limit(40)


@pytest.mark.parametrize(
    "case", [c for c in CASES if c.name in FIRST and c.fits(1)], ids=lambda case: case.name
)
def test_case(case: Case) -> None:
    need_gpu()
    if case.needs:
        pytest.importorskip(case.needs, reason=f"{case.needs} is not installed")
    with use_buffers(GpuBuffers()), Stores("nccl", "every_rank") as create:
        case.body(create)


@pytest.mark.parametrize(("body", "needs"), ALONE_CASES)
def test_case_of_a_store_of_one_process(body: Callable[[Stores], None], needs: str | None) -> None:
    need_gpu()
    if needs:
        pytest.importorskip(needs, reason=f"{needs} is not installed")
    with use_buffers(GpuBuffers()), Stores("device", "every_rank") as create:
        body(create)
