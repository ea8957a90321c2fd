"""Report of a run: printed at the end with its sentences on top, and kept in files."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from bench.job import Job
from bench.memory import HostMemory
from bench.options import Options
from bench.report import files
from ncclkv.comm.solo import SoloCommunicator

WARNING = "# THIS MEANS NOTHING"


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    monkeypatch.setattr(files.summary, "sentences", lambda record: [f"One of {record['run']}."] * 3)
    monkeypatch.setattr(files.plots, "draw", lambda base, record: [])
    comm = SoloCommunicator(10.0)
    return Job(comm, HostMemory(comm), Options(out=tmp_path), record={"run": 7})


def test_sentences_come_first_and_tables_are_kept_meanwhile(
    job: Job, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with files.report(job):
        job.print("# a table")
        (path,) = tmp_path.glob("*.txt")
        assert path.read_text() == "# a table\n"
        said = capsys.readouterr()
        assert said.out == ""
        assert str(path) in said.err
    report = "One of 7.\nOne of 7.\nOne of 7.\n\n# a table\n"
    assert path.read_text() == report
    assert capsys.readouterr().out == f"{report}\n# {path}\n# {path.with_suffix('.json')}\n"


def test_a_warning_stands_above_the_sentences_and_the_tables(
    job: Job, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with files.report(job, [WARNING]):
        (path,) = tmp_path.glob("*.txt")
        assert path.read_text() == f"{WARNING}\n"
    assert capsys.readouterr().out.startswith(f"{WARNING}\nOne of 7.\n")


def test_a_run_that_fails_prints_the_tables_that_it_has(
    job: Job, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure() -> None:
        with files.report(job):
            job.print("# a table")
            raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError, match="in the middle"):
        measure()
    assert capsys.readouterr().out == "# a table\n\n"
    assert [path.suffix for path in tmp_path.iterdir()] == [".txt"]


def test_only_rank_0_reports(tmp_path: Path) -> None:
    comm = SimpleNamespace(rank=1)
    with files.report(SimpleNamespace(comm=comm)):
        pass
    assert not [*tmp_path.iterdir()]


def test_an_earlier_run_is_not_overwritten(tmp_path: Path) -> None:
    assert len({files.reserve(tmp_path) for _ in range(3)}) == 3
    assert len([*tmp_path.glob("*.txt")]) == 3
