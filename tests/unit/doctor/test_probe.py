"""Children of the doctor: their words, their crashes, and the end of their parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ncclkv.doctor import probe
from tests.harness.slow import stretched
from tests.harness.source import ROOT

TELLS = "from ncclkv.doctor.probe import tell; tell('first', [1, 'a']); "


def test_values_arrive_beside_other_lines() -> None:
    ended = probe.ask("print('noise');" + TELLS + "tell('second', input())", 30, "given")
    assert ended == probe.Ended({"first": [1, "a"], "second": "given"}, "", "")


@pytest.mark.parametrize("name", ["SIGSEGV", "SIGABRT", "SIGBUS"])
def test_a_crash_is_described_and_earlier_values_are_kept(name: str) -> None:
    crash = f"import os, signal; os.kill(os.getpid(), signal.{name})"
    ended = probe.ask(TELLS + crash, 30)
    assert ended.told == {"first": [1, "a"]}
    assert ended.problem.startswith(f"was killed by {name}")


def test_an_exception_gives_its_last_line() -> None:
    ended = probe.ask("1 / 0", 30)
    assert ended.problem == "ended with exit code 1"
    assert ended.last == "ZeroDivisionError: division by zero"


def test_the_package_s_line_is_preferred() -> None:
    said = "import sys; sys.stderr.write('ncclkv: the reason\\nstack\\n'); sys.exit(3)"
    assert probe.ask(said, 30).last == "ncclkv: the reason"


def test_a_child_that_hangs_is_killed() -> None:
    ended = probe.ask(TELLS + "import time; time.sleep(600)", stretched(3))
    assert ended.told == {"first": [1, "a"]}
    assert ended.problem == f"had not ended after {stretched(3):g} s"


def test_lines_of_ranks_are_parsed(capfd: pytest.CaptureFixture[str]) -> None:
    probe.tell("a", 1)
    line = capfd.readouterr().out
    assert list(probe.told(f"[3] {line}[0] other\n{line}")) == [("a", 1), ("a", 1)]


def test_a_child_ends_with_its_parent() -> None:
    waits = "end_with_parent(); print(os.getpid(), flush=True); time.sleep(600)"
    program = f"import os, time; from ncclkv.doctor.probe import end_with_parent; {waits}"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {program!r}])"
    process = subprocess.Popen(
        [sys.executable, "-c", parent], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    number = int(process.stdout.readline())
    process.kill()
    process.communicate()
    limit = time.monotonic() + stretched(5)
    while (left := Path(f"/proc/{number}").exists()) and time.monotonic() < limit:
        time.sleep(0.01)
    assert not left


KILLED = """
import os, signal
from ncclkv.doctor.last_words import if_killed
with if_killed("last words"):
    {way}
print("went on")
"""


@pytest.mark.parametrize(
    ("way", "said"),
    [("os.kill(os.getpid(), signal.SIGKILL)", "last words"), ("pass", "went on\n")],
)
def test_last_words_are_written_for_a_killed_process_alone(way: str, said: str) -> None:
    process = subprocess.run(
        [sys.executable, "-c", KILLED.format(way=way)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        timeout=stretched(30),
    )
    assert process.stdout == said
    assert process.returncode == (-signal.SIGKILL if said == "last words" else 0)


def test_the_writer_is_in_no_process_group_of_the_launcher() -> None:
    """Check a launcher that kills its ranks' process group, as MPICH's does."""
    program = KILLED.format(way="os.killpg(0, signal.SIGKILL)")
    process = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        start_new_session=True,
        timeout=stretched(30),
    )
    assert process.stdout == "last words"
