"""Limits of tests that are stretched by ``NCCLKV_TEST_SLOW``."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from tests import run
from tests.harness import job
from tests.harness.limit import Limits
from tests.harness.slow import VARIABLE, stretched


@pytest.mark.parametrize(("text", "seconds"), [(None, 2.0), ("", 2.0), ("1.5", 3.0), ("4", 8.0)])
def test_a_limit_is_multiplied(
    monkeypatch: pytest.MonkeyPatch, text: str | None, seconds: float
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    if text is not None:
        monkeypatch.setenv(VARIABLE, text)
    assert stretched(2.0) == seconds


@pytest.mark.parametrize("text", ["0", "0.5", "-2", "nan", "1e9", "slow"])
def test_what_is_no_factor_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv(VARIABLE, text)
    with pytest.raises(SystemExit, match=f"{VARIABLE}='{text}' is not a factor"):
        stretched(2.0)


def test_the_limit_of_a_test_is_stretched(monkeypatch: pytest.MonkeyPatch) -> None:
    limits, past = Limits(), []
    monkeypatch.setattr(limits, "_expire", lambda what, seconds: past.append(seconds))
    for text in ("1", "50"):
        monkeypatch.setenv(VARIABLE, text)
        with limits._limit("a test", 0.1):
            time.sleep(0.5)
    assert past == [0.1]


def test_the_limit_of_a_run_is_stretched(monkeypatch: pytest.MonkeyPatch) -> None:
    sleep = run.Run("sleep", (sys.executable, "-c", "import time; time.sleep(1)"), 0.5)
    assert run.execute(sleep) == "FAILED: stopped after 0.5 s"
    monkeypatch.setenv(VARIABLE, "20")
    assert run.execute(sleep).startswith("passed")


def test_a_job_has_more_time_and_is_not_told_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "program.py"
    program.write_text(f"import os; print(os.environ.get('{VARIABLE}'))\n")
    monkeypatch.setenv(VARIABLE, "4")
    begin = time.monotonic()
    ended = job.start(program, ranks=1, mark=tmp_path / "mark", limit=10)
    assert ended.out == "None\n"
    assert time.monotonic() - begin < 40
