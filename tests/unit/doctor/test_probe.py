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
from ncclkv.doctor.last_words import written_though_killed
with written_though_killed("last words") as write:
    {way}
print("went on")
"""

KILL = "os.kill(os.getpid(), signal.SIGKILL)"
LONG = "'0123456789' * 100_000"
"""A text that no pipe takes at once."""


@pytest.mark.parametrize(
    ("way", "said"),
    [
        (KILL, "last words"),
        (f"write('its own'); {KILL}", "its own"),
        (f"write({LONG}); {KILL}", "0123456789" * 100_000),
        ("write('its own, ')", "its own, went on\n"),
        ("pass", "went on\n"),
    ],
)
def test_a_text_is_written_once_though_the_process_is_killed(way: str, said: str) -> None:
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
    assert process.returncode == (-signal.SIGKILL if KILL in way else 0)


def test_a_path_is_written_that_is_no_utf_8() -> None:
    way = r"write('caf\udce9')"  # the name of a file, as Python reads it
    process = subprocess.run(
        [sys.executable, "-c", KILLED.format(way=way)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        check=False,
        timeout=stretched(30),
    )
    assert process.stdout == b"caf\xe9went on\n"


def test_an_error_of_standard_output_is_that_of_the_call() -> None:
    process = subprocess.run(
        [sys.executable, "-c", KILLED.format(way="write('its own')")],
        cwd=ROOT,
        stdout=os.open("/dev/full", os.O_WRONLY),
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        timeout=stretched(30),
    )
    assert process.returncode == 1
    assert "No space left on device: 'standard output'" in process.stderr
    assert process.stderr.count("Traceback") == 1


def test_a_text_that_was_given_in_part_is_not_written() -> None:
    """Check a process that is killed while it gives a text, byte by byte."""
    slow = "os.write = lambda descriptor, text, write=os.write: write(descriptor, text[:1])"
    way = f"signal.setitimer(signal.ITIMER_REAL, 0.2); {slow}; write({LONG})"
    process = subprocess.run(
        [sys.executable, "-c", KILLED.format(way=way)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        timeout=stretched(30),
    )
    assert process.returncode == -signal.SIGALRM
    assert process.stdout == "last words"


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
