"""Rows of a host: its open files, names and clock."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from ncclkv.doctor import machine
from ncclkv.doctor.rows import BLOCKS, OK, WARNS


def test_a_hard_limit_of_files_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "free_descriptors", lambda: 40)
    monkeypatch.setattr(resource, "getrlimit", lambda number: (60, 70))
    row = machine.open_files(4)
    assert row.level == WARNS
    assert row.used == "88 needed by 4 ranks of a host"
    assert row.mend == "ulimit -n 1024, by root: the hard limit is 70"
    assert machine.open_files(1).level == OK


def test_names_that_no_host_has() -> None:
    row = machine.names("named hosts", ["localhost", "no.such.host.invalid"], needed=True)
    assert row.level == BLOCKS
    assert row.found.startswith("localhost is ")
    assert row.why.startswith("no.such.host.invalid has no address")
    assert "/etc/hosts" in row.mend
    assert machine.names("host name", ["no.such.host.invalid"], needed=False).level == OK


@pytest.mark.parametrize(("source", "level"), [("tsc", OK), ("hpet", WARNS)])
def test_slow_clocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, level: str
) -> None:
    (tmp_path / "clock").write_text(f"{source}\n")
    monkeypatch.setattr(machine, "_CLOCK", tmp_path / "clock")
    assert machine.clock()[:2] == ("clock source", source)
    assert machine.clock().level == level
