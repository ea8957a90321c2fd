"""The programs of ``docs/from-mxnet.md``, and its tables."""

from __future__ import annotations

import difflib
import re
from pathlib import Path

import pytest

from ncclkv.store.backends import RANKS
from tests.harness.job import ROOT, start

mx = pytest.importorskip("mxnet", reason="MXNet is not installed")

PAGE = (ROOT / "docs" / "from-mxnet.md").read_text()
PROGRAMS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
PAIRS = {"gluon": PROGRAMS[:2], "module": PROGRAMS[2:4]}


@pytest.mark.parametrize("name", PAIRS)
def test_two_lines_change(name: str) -> None:
    before, after = (program.splitlines() for program in PAIRS[name])
    changes = [line for line in difflib.ndiff(before, after) if line[0] in "+-"]
    assert changes == [
        "+ import ncclkv.mxnet",
        '- kv = mx.kv.create("dist_sync")',
        '+ kv = mx.kv.create("ncclkv")',
    ]


@pytest.mark.limit(120)
@pytest.mark.parametrize("name", PAIRS)
def test_the_changed_program_finds_the_weights(name: str, tmp_path: Path) -> None:
    program = tmp_path / f"{name}.py"
    program.write_text(PAIRS[name][1])
    ended = start(program, ranks=2, mark=tmp_path / "mark", limit=100)
    assert ended.code == 0, ended.out + ended.err
    (line,) = ended.out.splitlines()  # of rank 0
    found = [float(word) for word in re.findall(r"-?\d+\.\d*", line)]
    assert found == pytest.approx([1, 2, 3, 4], abs=0.05)


def names_of(title: str, column: int) -> list[str]:
    """Return the words in code font in a column of the table under a title."""
    section = PAGE.split(f"## {title}\n")[1].split("\n## ")[0]
    rows = [line.split("|") for line in section.splitlines() if line.startswith("| `")]
    return [name for row in rows for name in re.findall(r"`(\w+)`", row[column])]


def test_every_name_of_a_store_is_in_the_table() -> None:
    assert {*RANKS} - {"threads"} <= {*names_of("Names of stores", 1)}


def test_every_call_of_mxnet_is_in_the_table() -> None:
    text = PAGE.split("## Calls")[1]
    public = {*dir(mx.kvstore.KVStore), *dir(mx.kvstore.KVStoreBase)}
    calls = {name for name in public if not name.startswith("_")} - {"OPTIMIZER", "kv_registry"}
    calls |= {"_barrier", "_set_updater", "_send_command_to_servers"}
    assert {name for name in calls if not re.search(rf"\b{name}\b", text)} == set()
