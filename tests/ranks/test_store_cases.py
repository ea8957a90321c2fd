"""The cases over the ranks of the job, in host memory, in both placements."""

from __future__ import annotations

import pytest
from mpi4py import MPI

from tests.conformance import CASES, Case
from tests.conformance.stores import Stores

SIZE = MPI.COMM_WORLD.Get_size()


@pytest.mark.parametrize("update_on", ["every_rank", "root"])
@pytest.mark.parametrize("case", [c for c in CASES if c.fits(SIZE)], ids=lambda case: case.name)
def test_ranks(case: Case, update_on: str) -> None:
    if case.needs:
        pytest.importorskip(case.needs, reason=f"{case.needs} is not installed")
    with Stores("dist_sync", update_on) as create:
        case.body(create)
