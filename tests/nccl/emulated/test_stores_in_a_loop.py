"""Layer 3b: stores made one after another leave no objects."""

from __future__ import annotations

import json
import os
import subprocess

import pytest

from tests.harness.slow import stretched
from tests.harness.source import ROOT

PROGRAM = "tests/nccl/emulated/programs/stores.py"
RANKS = 2
STORES = int(os.environ.get("NCCLKV_TEST_STORES", "25"))
"""Number of stores; 1000 take minutes."""

pytestmark = pytest.mark.limit(60 + 2 * STORES)


def counted(how: str) -> dict[int, list[dict[str, int]]]:
    """Run the program, and return each rank's live objects, early and at the end."""
    ended = subprocess.run(
        ["launch/local.sh", "-n", str(RANKS), PROGRAM, how, str(STORES)],
        cwd=ROOT,
        env={
            **os.environ,
            "PYTHONWARNINGS": "ignore::ResourceWarning",
        },
        capture_output=True,
        text=True,
        timeout=stretched(50 + 2 * STORES),
        check=False,
    )
    text = f"{ended.stdout}\n{ended.stderr}"
    assert ended.returncode == 0, text
    found: dict[int, list[dict[str, int]]] = {rank: [] for rank in range(RANKS)}
    for line in ended.stdout.splitlines():
        if line.startswith("rank "):
            rank, _, counts = line.removeprefix("rank ").split(" | ", 2)
            found[int(rank)].append(json.loads(counts))
    assert all(len(counts) == 2 for counts in found.values()), text
    return found


@pytest.mark.parametrize("how", ["plain", "options", "capture", "failed", "dropped"])
def test_what_is_alive_stays_the_same(how: str) -> None:
    for rank, (early, late) in counted(how).items():
        more = {kind: (early[kind], late[kind]) for kind in early if late[kind] > early[kind]}
        assert not more, f"rank {rank} keeps more and more: {more}"
