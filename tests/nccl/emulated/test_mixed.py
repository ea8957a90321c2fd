"""Layer 3b: arrays of hosts and of devices in one call, and two stores in one loop."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.nccl.emulated import jobs

pytestmark = pytest.mark.limit(100)


@pytest.mark.parametrize("ranks", [2, 3])
def test_arrays_of_hosts_and_devices_in_one_call(ranks: int, tmp_path: Path) -> None:
    ended = jobs.start("mixed.py", ranks=ranks, mark=tmp_path / "mark", limit=90)
    assert ended.code == 0, f"{ended.out}\n{ended.err}"
    found = jobs.lines(ended)
    assert {rank: len(lines) for rank, lines in found.items()} == dict.fromkeys(range(ranks), 4)


@pytest.mark.parametrize("how", ["plain", "captured"])
def test_two_stores_take_turns(how: str, tmp_path: Path) -> None:
    ended = jobs.start("two_stores.py", how, ranks=2, mark=tmp_path / "mark", limit=90)
    assert ended.code == 0, f"{ended.out}\n{ended.err}"
    assert jobs.lines(ended) == {0: [[how, "8 steps"]], 1: [[how, "8 steps"]]}
