"""Layer 3b: all rungs of the ladder hold, so that a rung that fails on a GPU shows its part."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness.source import ROOT
from tests.nccl.emulated import jobs

PROGRAM = ROOT / "tests" / "nccl" / "programs" / "ladder.py"


@pytest.mark.limit(120)
@pytest.mark.parametrize("ranks", [1, 2])
def test_all_rungs_hold(ranks: int, tmp_path: Path) -> None:
    variables = {"NCCLKV_SHARE_GPU": "1", "EMULATED_DEVICES": "1"} if ranks > 1 else {}
    mark = tmp_path / "mark"
    ended = jobs.start(PROGRAM, "ranks", ranks=ranks, mark=mark, limit=100, **variables)
    assert ended.code == 0, f"{ended.out}\n{ended.err}"
    for rank in range(ranks):
        assert f"[{rank}] failed rungs: none" in ended.out
