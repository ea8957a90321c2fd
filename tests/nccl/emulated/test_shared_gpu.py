"""Layer 3b: ranks that share a device make several stores, with a new NCCL and with an old one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness.source import ROOT
from tests.nccl.emulated import jobs

PROGRAM = ROOT / "tests" / "nccl" / "programs" / "shared_gpu.py"
pytestmark = pytest.mark.limit(100)


@pytest.mark.parametrize("nccl", ["22809", "23003"])
@pytest.mark.parametrize(("how", "ranks", "first"), [("alone", 2, "1"), ("halves", 4, "2")])
def test_a_store_of_all_ranks_comes_after_smaller_ones(
    how: str, ranks: int, first: str, nccl: str, tmp_path: Path
) -> None:
    """Check that no rank is refused for a variable that NCCL has read for its first store."""
    variables = {"NCCLKV_SHARE_GPU": "1", "EMULATED_DEVICES": "1", "EMULATED_NCCL_VERSION": nccl}
    mark = tmp_path / "mark"
    ended = jobs.start(PROGRAM, how, ranks=ranks, mark=mark, limit=90, **variables)
    assert ended.code == 0, f"{ended.out}\n{ended.err}"
    assert jobs.lines(ended) == {rank: [[first, str(ranks)]] for rank in range(ranks)}
