"""A short soak; ``launch/local.sh -n 4 -m tests.soak --steps 20000`` is a long one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.harness.extent import some_or_all
from tests.harness.job import start

STEPS = 500
GROWTH = 0.1
"""Allowed growth of memory, as a fraction: a short run still touches some pages first."""

LIMIT = 50.0


@pytest.mark.limit(LIMIT + 10)
@pytest.mark.parametrize("ranks", some_or_all([2], [4]))
def test_results_are_exact_and_memory_does_not_grow(tmp_path: Path, ranks: int) -> None:
    ended = start(
        "-m",
        "tests.soak",
        f"--steps={STEPS}",
        f"--growth={GROWTH}",
        ranks=ranks,
        mark=tmp_path / "mark",
        limit=LIMIT,
    )
    assert ended.code == 0, f"{ended.out}\n{ended.err}"
    assert re.match(
        rf"soak: {STEPS} steps on {ranks} ranks, \d+ a second; memory .* MiB", ended.out
    )
