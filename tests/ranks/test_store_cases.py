"""The store cases over the ranks of the job, in host memory."""

from __future__ import annotations

import pytest
from mpi4py import MPI

from tests.conformance import Case
from tests.conformance.covering import chosen, layout_of_ranks
from tests.conformance.stores import Stores
from tests.ranks.conftest import on_several_hosts

SIZE = MPI.COMM_WORLD.Get_size()
LAYOUT = layout_of_ranks(several_hosts=on_several_hosts(MPI.COMM_WORLD))


@pytest.mark.parametrize(("case", "size", "update_on"), chosen(LAYOUT, SIZE))
def test_ranks(case: Case, size: int, update_on: str) -> None:
    if case.needs:
        pytest.importorskip(case.needs, reason=f"{case.needs} is not installed")
    with Stores("dist_sync", update_on) as create:
        case.body(create)
