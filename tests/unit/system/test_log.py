"""Ranks in records of the log, and the level that a variable sets."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator

import pytest

import ncclkv
from ncclkv import env
from ncclkv.errors import LaunchError
from ncclkv.system import log
from ncclkv.testing import Seeded, run_ranks


class Records(logging.Handler):
    """Keeps the records."""

    def __init__(self) -> None:
        super().__init__()
        self.ranks: list[int] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.ranks.append(record.ncclkv_rank)  # type: ignore[attr-defined]


@pytest.fixture
def records() -> Iterator[Records]:
    handler, logger = Records(), logging.getLogger(log.NAME)
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)


def body() -> None:
    with ncclkv.create("threads"):
        logging.getLogger(log.NAME).error("here")


@pytest.mark.parametrize("seeded", [False, True])
def test_each_record_has_the_rank_of_its_thread(records: Records, seeded: bool) -> None:
    run_ranks(3, body, world=Seeded(1)) if seeded else run_ranks(3, body)
    assert sorted(records.ranks) == [0, 1, 2]
    ncclkv.create("local").close()
    logging.getLogger(log.NAME).error("outside of ranks")
    assert records.ranks[-1] == (env.launched_rank() or 0)


PROGRAM = """
import logging, sys
import ncclkv
if "configured" in sys.argv:
    logging.basicConfig(format="mine %(ncclkv_rank)d %(message)s", stream=sys.stderr)
ncclkv.create("local").close()
logging.getLogger("ncclkv").info("a fact")
logging.getLogger("ncclkv").warning("a warning")
"""


def stderr(*arguments: str, **environment: str) -> str:
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments],
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(sys.path), **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return run.stderr


def test_the_variable_adds_a_handler_with_the_rank() -> None:
    lines = stderr(NCCLKV_LOG_LEVEL="info").splitlines()
    assert [line.split("ncclkv ", 1)[1] for line in lines[-2:]] == [
        "rank 0 INFO: a fact",
        "rank 0 WARNING: a warning",
    ]
    assert "a fact" not in stderr(NCCLKV_LOG_LEVEL="ERROR")
    assert "a warning" not in stderr(NCCLKV_LOG_LEVEL="ERROR")


def test_without_the_variable_the_log_is_pythons_own() -> None:
    assert stderr() == "a warning\n"


def test_the_handlers_of_the_program_are_the_only_ones() -> None:
    text = stderr("configured", NCCLKV_LOG_LEVEL="INFO")
    assert text.endswith("mine 0 a fact\nmine 0 a warning\n")
    assert "rank 0 INFO" not in text


def test_a_wrong_level_is_refused_at_the_creation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCLKV_LOG_LEVEL", "loud")
    assert env.log_level() == ""
    with pytest.raises(LaunchError, match="NCCLKV_LOG_LEVEL='loud' is not an allowed value"):
        ncclkv.create("local")
