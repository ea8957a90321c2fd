"""The programs of docs/observing.md, as they stand there."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.harness.source import ROOT

PROGRAMS = re.findall(r"```python\n(.*?)```", (ROOT / "docs/observing.md").read_text(), re.DOTALL)
PRINTED = (r"/\S+/local-rank0-\S+\.jsonl\n", r"", r"[-0-9:, ]+ rank 0: a record with its rank\n")


@pytest.mark.parametrize(("program", "printed"), [*zip(PROGRAMS, PRINTED, strict=True)])
def test_a_program_of_the_page_runs(program: str, printed: str) -> None:
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert run.returncode == 0, run.stderr
    assert re.fullmatch(printed, run.stdout + run.stderr), run.stdout + run.stderr
