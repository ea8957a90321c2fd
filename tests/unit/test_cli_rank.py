"""What stands between the launcher and a rank, where there is no runner to tell."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ncclkv.cli import rank
from tests.harness.slow import stretched

STARTED = [sys.executable, "-I", "-S", rank.__file__]


def start(folder: Path, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*STARTED, str(folder), *command],
        env={"PATH": "/usr/bin:/bin", **environment},
        input="hello",
        capture_output=True,
        text=True,
        timeout=stretched(20),
        check=False,
    )


def test_streams_and_a_good_end_are_the_command_s_own(tmp_path):
    done = start(tmp_path, "/bin/sh", "-c", "cat; echo err >&2")
    assert (done.returncode, done.stdout, done.stderr) == (0, "hello", "err\n")


def test_an_exit_code_is_passed_on_and_told_of(tmp_path):
    done = start(tmp_path, "/bin/sh", "-c", "exit 3", PMI_SIZE="4", PMI_RANK="2")
    assert done.returncode == 3
    assert done.stderr.startswith("ncclkv: rank 2 on ")
    assert done.stderr.endswith(" failed, ending the job: exit code 3\n")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_it_ends_by_the_signal_that_the_command_ended_by(tmp_path, number):
    done = start(tmp_path, "/bin/sh", "-c", f"kill -{int(number)} $$")
    assert done.returncode == -number
    assert done.stderr.endswith(f" failed, ending the job: signal {int(number)}\n")


def test_a_command_that_is_not_there(tmp_path):
    done = start(tmp_path, "no-such-program")
    assert done.returncode == 127
    assert "ncclkv: no-such-program cannot be started: " in done.stderr


def test_it_imports_no_more_than_it_needs(tmp_path):
    """It waits beside every rank, so it is to be small and soon there."""
    listing = f"import runpy, sys; sys.argv = ['', '{tmp_path}', 'true']\n"
    listing += "try: runpy.run_path(sys.orig_argv[-1], run_name='__main__')\n"
    listing += "except SystemExit: print(*sys.modules)"
    loaded = subprocess.check_output([sys.executable, "-I", "-S", "-c", listing, rank.__file__])
    assert b"ncclkv.env" in loaded
    assert b"numpy" not in loaded
