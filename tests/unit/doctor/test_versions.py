"""Rows of versions: the oldest that are allowed, and kernels in C that are not built."""

from __future__ import annotations

import json
import shlex
import sys
from configparser import ConfigParser
from pathlib import Path

import pytest

import ncclkv
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


@pytest.mark.parametrize("there", [True, False])
def test_kernels_are_built_again_from_the_clone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, there: bool
) -> None:
    """Check a package that pip has copied from a clone, which no index may have."""
    clone = tmp_path / "a clone"
    clone.mkdir()
    if there:
        (clone / "setup.py").touch()

    class Noted:
        def read_text(self, name: str) -> str:
            assert name == "direct_url.json"
            return json.dumps({"url": clone.as_uri(), "dir_info": {}})

    monkeypatch.setattr(versions, "distribution", lambda name: Noted())
    monkeypatch.setattr(ncclkv, "__file__", str(tmp_path / "site-packages" / "ncclkv" / "x.py"))
    source = shlex.quote(str(clone)) if there else "ncclkv"
    assert versions._build().endswith(f" --force-reinstall --no-deps --no-cache-dir {source}")
