"""Types of the public names, as mypy infers them in a user's program."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mypy", reason="mypy is absent: the extra `test`")

from tests.harness.slow import stretched
from tests.harness.source import ROOT

pytestmark = pytest.mark.limit(120)

PROGRAMS = Path(__file__).parent / "programs"
_ERROR = re.compile(r"^(?P<file>[^:]+):(?P<line>\d+): (?:error|note): (?P<text>.*)$")
_EXPECTED = re.compile(r"# E: (?P<code>[a-z-]+) (?P<part>.*)$")


@pytest.fixture(scope="module")
def found() -> dict[str, dict[int, str]]:
    """Return mypy's errors in both programs, by file and line."""
    programs = [str(PROGRAMS / f"{name}_types.py") for name in ("correct", "wrong")]
    # The project's directory has mypy's cache, which saves time.
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--hide-error-context", *programs],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=stretched(110),
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    texts: dict[str, dict[int, str]] = {"correct_types.py": {}, "wrong_types.py": {}}
    for match in filter(None, map(_ERROR.match, done.stdout.splitlines())):
        lines = texts.setdefault(Path(match["file"]).name, {})
        lines[int(match["line"])] = f"{lines.get(int(match['line']), '')} {match['text']}"
    return texts


def test_correct_calls_have_no_error(found: dict[str, dict[int, str]]) -> None:
    assert found["correct_types.py"] == {}
    assert found.keys() == {"correct_types.py", "wrong_types.py"}


def test_each_mistake_has_its_error(found: dict[str, dict[int, str]]) -> None:
    expected = {}
    for number, line in enumerate((PROGRAMS / "wrong_types.py").read_text().splitlines(), 1):
        if match := _EXPECTED.search(line):
            expected[number] = match["code"], match["part"]
    said = found["wrong_types.py"]
    assert len(expected) > 30
    assert said.keys() == expected.keys()
    wrong = [
        f"line {number}: {said[number]}"
        for number, (code, part) in expected.items()
        if part not in said[number] or f"[{code}]" not in said[number]
    ]
    assert wrong == []
