"""Layer 3b: the training program over NCCL, on one rank and on several."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness.source import ROOT
from tests.nccl.emulated import jobs

pytestmark = pytest.mark.limit(100)


@pytest.mark.parametrize(
    ("ranks", "update_on"), [(1, "every_rank"), (1, "root"), (3, "every_rank"), (3, "root")]
)
def test_it_learns_and_all_ranks_have_the_same_bits(
    ranks: int, update_on: str, tmp_path: Path
) -> None:
    options = ["--kvstore", "nccl", "--epochs", "6", "--update-on", update_on]
    ended = jobs.start(ROOT / "train.py", *options, ranks=ranks, mark=tmp_path / "mark", limit=90)
    assert ended.code == 0, f"{ended.out}\n{ended.err}"
    assert "weights: bit-identical on all ranks" in ended.out
    assert f"on {ranks} rank(s)" in ended.out
