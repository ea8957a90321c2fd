"""Layer 2, recording stand-in, not NCCL: the store cases over stores in a GPU's memory.

They check the order by streams and events of all the store's work, at one rank and at several.
Layer 3b runs the same cases at 1 to 4 ranks over the real CuPy.
"""

from __future__ import annotations

import pytest

pytest.importorskip("cupy", reason="layer 2 needs CuPy: pip install 'ncclkv[cuda12]'")

from tests.conformance import Case
from tests.conformance.capabilities import use_buffers
from tests.conformance.covering import chosen
from tests.nccl.standin import Worker, run_on_standin
from tests.nccl.standin.buffers import StandInBuffers
from tests.nccl.standin.stores import StandInStores

pytestmark = pytest.mark.limit(30)


@pytest.mark.parametrize(("case", "size", "update_on"), chosen("stand-in-nodes", 3, 4))
def test_case_on_nodes(
    case: Case, size: int, update_on: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCCLKV_RANKS_PER_NODE", "2")
    test_case(case, size, update_on)


@pytest.mark.parametrize(("case", "size", "update_on"), chosen("stand-in", 1, 2, 3))
def test_case(case: Case, size: int, update_on: str) -> None:
    if case.needs:
        pytest.importorskip(case.needs, reason=f"{case.needs} is not installed")

    def body(worker: Worker) -> None:
        with use_buffers(StandInBuffers(worker)), StandInStores(worker, update_on) as create:
            case.body(create)

    run_on_standin(size, body, lazy=True)
