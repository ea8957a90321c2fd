"""Layer 3b: a device with too little memory for a store, or for its keys."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness.slow import stretched
from tests.nccl.emulated import jobs

pytestmark = pytest.mark.limit(60)


def run(mark: Path, of_nccl: int) -> dict[int, dict[str, str]]:
    """Run the program, whose rank 1 has 24 MiB, and return each rank's outcomes."""
    variables = {"EMULATED_NCCL_MEMORY": str(of_nccl)}
    ended = jobs.start("little_memory.py", "1", "24", ranks=2, mark=mark, **variables)
    assert ended.code == 0, f"{ended.out}\n{ended.err}"
    found: dict[int, dict[str, str]] = {}
    for rank, lines in jobs.lines(ended).items():
        for what, seconds, outcome in lines:
            assert float(seconds) < stretched(2.0), ended.out
            found.setdefault(rank, {})[what] = outcome
    assert set(found) == {0, 1}, ended.out
    return found


def test_keys_that_do_not_fit_are_refused_on_all_ranks_and_the_store_goes_on(
    tmp_path: Path,
) -> None:
    for outcomes in run(tmp_path / "mark", of_nccl=0).values():
        assert outcomes["create"] == "passed"
        assert outcomes["init"].startswith("OutOfMemory: ")
        assert "do not fit on rank 1: they need " in outcomes["init"]
        assert outcomes["init again"] == "passed"
        assert outcomes["sum"] == "2"


def test_nccl_without_memory_is_told_on_all_ranks(tmp_path: Path) -> None:
    found = run(tmp_path / "mark", of_nccl=64)
    assert found[1]["create"].startswith("LaunchError: ")
    assert found[0]["create"].startswith("RankLost: rank 0 of 2: rank 1 left while ")
    for outcomes in found.values():
        assert "ncclCommInitRank" in outcomes["create"]
