"""Layer 2, recording stand-in, not NCCL: replayed steps against the same steps called each time."""

from __future__ import annotations

import pytest

pytest.importorskip("cupy", reason="layer 2 needs CuPy: pip install 'ncclkv[cuda12]'")

from tests.conformance.capabilities import use_buffers
from tests.conformance.captures_all import CAPTURES
from tests.nccl.captures import PLACEMENTS
from tests.nccl.standin import Worker, run_on_standin
from tests.nccl.standin.buffers import StandInBuffers
from tests.nccl.standin.stores import StandInStores

pytestmark = pytest.mark.limit(30)


@pytest.mark.parametrize(("update_on", "size"), PLACEMENTS)
@pytest.mark.parametrize("name", CAPTURES)
def test_case(name: str, update_on: str, size: int) -> None:
    def body(worker: Worker) -> None:
        with use_buffers(StandInBuffers(worker)), StandInStores(worker, update_on) as create:
            CAPTURES[name](create)

    run_on_standin(size, body, lazy=True)


@pytest.mark.parametrize(("update_on", "size"), [("every_rank", 3), ("root", 4), ("sharded", 4)])
def test_nodes_with_two_ranks_each(
    update_on: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCCLKV_RANKS_PER_NODE", "2")
    test_case("sums_that_nodes_encode", update_on, size)
