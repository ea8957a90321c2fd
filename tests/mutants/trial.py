"""Tests run on a copy of the tree in which one fault is planted."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.harness import leftovers
from tests.harness.extent import VARIABLE
from tests.harness.slow import stretched
from tests.mutants.mutant import Mutant, Selection, Stale
from tests.run import ROOT, end

LIMITS = {"covering": 120.0, "all": 600.0}
"""Time limit of one selection, in seconds."""

PARTS = ("bench", "docs", "launch", "ncclkv", "tests", "setup.cfg", "train.py")
"""Files and folders of the tree that are copied."""

KILLED, SURVIVED, STALE, NOT_RUN = "killed", "SURVIVED", "STALE", "NOT RUN"
ESCAPED = "ESCAPED"
"""Verdict: found by all cases on all layouts, and not by the covering set."""

# Of pytest: interrupted (a module cannot be imported), an error of its own, wrong use, no test.
_NO_VERDICT = (2, 3, 4, 5)


@contextmanager
def copied() -> Iterator[Path]:
    """Make a copy of the tree, which is removed afterwards."""
    emulated = ROOT / "build" / "emulated"  # built once for all copies
    emulated.mkdir(parents=True, exist_ok=True)
    above = ROOT / "build" / "mutants"
    above.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=above) as folder:
        tree = Path(folder)
        for part in PARTS:
            copy = shutil.copytree if (ROOT / part).is_dir() else shutil.copy2
            copy(ROOT / part, tree / part)
        (tree / "build").mkdir()
        (tree / "build" / "emulated").symlink_to(emulated)
        yield tree


def try_mutant(mutant: Mutant, tests: Sequence[Selection], tree: Path) -> tuple[str, str, str]:
    """Plant a fault in a copy, run tests until one fails, and restore the copy.

    The tests run the covering set of store cases, and all cases if the fault survives.  Return the
    verdict, its reason, and the layer.
    """
    file = tree / mutant.file
    try:
        file.write_text(mutant.plant(file.read_text()))
        for cases in ("covering", "all"):
            for each in tests:
                verdict, detail = run(each, tree, cases)
                if verdict != SURVIVED:
                    found = ESCAPED if verdict == KILLED and cases == "all" else verdict
                    return found, detail, each.layer
        return SURVIVED, detail, each.layer
    except Stale as error:
        return STALE, str(error), ""
    finally:
        # With its time: compiled files of the original are right again.
        shutil.copy2(ROOT / mutant.file, file)


def run(tests: Selection, tree: Path, cases: str = "covering") -> tuple[str, str]:
    """Run tests in a copy, with so many store cases; return the verdict and what it rests on."""
    environment = {
        "VENV": sys.prefix,
        # Before the tree that this environment has installed.
        "PYTHONPATH": str(tree),
        # A mutant and its original may have one size and one time.
        "PYTHONDONTWRITEBYTECODE": "1",
        VARIABLE: cases,
        "EMULATED_DEVICES": str(max(2, tests.ranks)),
    }
    before = leftovers.present()
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            tests.command(),
            cwd=tree,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code: int | None = process.wait(stretched(LIMITS[cases]))
        except subprocess.TimeoutExpired:
            code = None
        finally:
            if process.returncode is None:
                end(process)
            leftovers.sweep(before)
        output.seek(0)
        return judged(code, output.read(), tests)


def judged(code: int | None, output: str, tests: Selection) -> tuple[str, str]:
    """Return the verdict on a pytest run by its exit code (None: stopped) and its output."""
    last = output.strip().rpartition("\n")[2]
    if code is None:
        return KILLED, f"{tests} did not end"
    if code == 0:
        passed = re.search(r"\b[1-9]\d* passed", output)
        return (SURVIVED, str(tests)) if passed else (NOT_RUN, f"{tests}: {last}")
    if failed := re.search(r"^(?:.*: )?(?:FAILED|ERROR) (tests/\S.*?)(?: - .*)?$", output, re.M):
        return KILLED, failed[1]
    if late := re.search(r"^(?:.*: )?(tests/\S.*?): past the limit of", output, re.M):
        return KILLED, f"{late[1]} (past its limit)"
    # Other codes mean a signal.  Without its first line pytest has not been started.
    if 0 <= code <= 128 and (code in _NO_VERDICT or "test session starts" not in output):
        return NOT_RUN, f"{tests}: {last}"
    return KILLED, f"{tests} ended with exit code {code}"
