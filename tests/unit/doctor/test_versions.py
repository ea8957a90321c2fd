"""Rows of versions: the oldest that are allowed, and kernels in C that are not built."""

from __future__ import annotations

import sys
from configparser import ConfigParser

import pytest

from ncclkv.doctor import versions
from ncclkv.doctor.rows import WARNS
from ncclkv.kernels.host import compiled
from tests.harness.source import ROOT


def test_oldest_versions_are_those_of_the_package() -> None:
    config = ConfigParser()
    config.read(ROOT / "setup.cfg")
    wanted = config["options"]["install_requires"].split()
    assert wanted == [f"{name.lower()}>={oldest}" for name, oldest in versions.OLDEST.items()]


def test_kernels_that_are_not_built_name_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "BUILT", False)
    monkeypatch.setattr(compiled, "active", False)
    row = {row.thing: row for row in versions.rows()}["C kernels"]
    assert (row.found, row.used, row.level) == ("not built", "NumPy", WARNS)
    assert row.mend.endswith(f"{sys.executable} -m pip install -e {ROOT}")
