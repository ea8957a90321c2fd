"""Warnings and calls are at the program's line, whatever functions of the package lie between."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ncclkv
from ncclkv import optimizer
from tests.harness.source import ROOT

WORDS = "independent stores|replaces .* under the name 'twice'|rename the class to keep both"


def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Create a store of this process in rank 0 of several."""
    monkeypatch.setenv("PMI_SIZE", "4")
    monkeypatch.setenv("PMI_RANK", "0")
    ncclkv.create("local").close()


def store_again(_: Any) -> None:
    """Register two classes of stores under a name."""
    for _ in range(2):
        made = type("Twice", (ncclkv.KVStoreBase,), {})
        ncclkv.KVStoreBase.register(made)
    del ncclkv.KVStoreBase.kv_registry["twice"]


def optimizer_again(_: Any) -> None:
    """Register two classes of optimizers under a name."""
    for module in "first", "second":
        optimizer.register(type("Twice", (optimizer.SGD,), {"__module__": module}))


@pytest.mark.parametrize("call", [alone, store_again, optimizer_again])
def test_a_warning_is_at_the_line_of_the_program(
    call: Callable[[Any], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.warns(UserWarning, match=WORDS) as caught:
        call(monkeypatch)
    assert [warning.filename for warning in caught] == [__file__]


def test_a_warning_is_shown_once_for_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(3):
            alone(monkeypatch)
    assert len(caught) == 1


PROGRAM = """
import sys
sys.path.insert(0, {folder!r})
import ncclkv
from ncclkv.testing import run_ranks

def body():
    kv = ncclkv.create("threads")
    kv.barrier()
    if kv.rank == 0:
        kv.barrier()

try:
    run_ranks(2, body)
except ncclkv.errors.RankLost as error:
    print(error)
"""


@pytest.mark.parametrize("folder", ["{tmp}/link", "link", "."])
def test_a_call_is_at_the_line_of_the_program_wherever_the_package_lies(
    folder: str, tmp_path: Path
) -> None:
    path = folder.format(tmp=tmp_path)
    (tmp_path / "link").symlink_to(ROOT)
    (tmp_path / "ncclkv").symlink_to(ROOT / "ncclkv")
    (tmp_path / "program.py").write_text(PROGRAM.format(folder=path))
    command = [sys.executable, "program.py"]
    ended = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert "last called barrier() at program.py:9, " in ended.stdout, ended.stdout + ended.stderr
