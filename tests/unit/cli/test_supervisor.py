"""A rank's supervisor without a runner: the output passes through mpirun."""

from __future__ import annotations

import re
import signal
import subprocess
import sys

import pytest

from ncclkv.cli import supervisor
from tests.harness.slow import stretched

STARTED = [sys.executable, "-I", "-S", supervisor.__file__]


NOBODY = "@ncclkv-run-nobody"
UNREACHABLE = re.compile(
    r"ncclkv run: rank \d on \S+ cannot reach the runner at @ncclkv-run-nobody \(.*refused\): its "
    r"output passes through mpirun, and its end is not reported. Name the hosts with --hosts, or "
    r"open a port and give --port\n"
)


def start(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Start a supervisor that finds no runner; remove its warning from its stderr."""
    done = subprocess.run(
        [*STARTED, NOBODY, *command],
        env={"PATH": "/usr/bin:/bin", **environment},
        input="hello",
        capture_output=True,
        text=True,
        timeout=stretched(20),
        check=False,
    )
    match = UNREACHABLE.match(done.stderr)
    assert match, done.stderr
    done.stderr = done.stderr[match.end() :]
    return done


def test_streams_and_exit_code_0_are_the_commands():
    done = start("/bin/sh", "-c", "cat; echo err >&2")
    assert (done.returncode, done.stdout, done.stderr) == (0, "hello", "err\n")


def test_a_nonzero_exit_code_is_passed_on_and_printed():
    done = start("/bin/sh", "-c", "exit 3", PMI_SIZE="4", PMI_RANK="2")
    assert done.returncode == 3
    assert re.fullmatch(r"ncclkv run: rank 2 on \S+ failed: exit code 3\n", done.stderr)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_the_supervisor_ends_by_the_commands_signal(number):
    done = start("/bin/sh", "-c", f"kill -{int(number)} $$")
    assert done.returncode == -number
    assert done.stderr.endswith(f" failed: signal {int(number)}\n")


def test_a_missing_command_is_named():
    done = start("no-such-program")
    assert done.returncode == 127
    assert "ncclkv: no-such-program cannot be started: " in done.stderr


def test_the_supervisor_imports_few_modules():
    """Check the imports: a supervisor runs beside every rank, so it must start fast."""
    listing = f"import runpy, sys; sys.argv = ['', '{NOBODY}', 'true']\n"
    listing += "try: runpy.run_path(sys.orig_argv[-1], run_name='__main__')\n"
    listing += "except SystemExit: print(*sys.modules)"
    loaded = subprocess.check_output(
        [sys.executable, "-I", "-S", "-c", listing, supervisor.__file__]
    )
    assert b"ncclkv.env" in loaded
    assert b"numpy" not in loaded
