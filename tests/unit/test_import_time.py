"""Modules that an import of the package, and a command line, must not load: each costs time."""

from __future__ import annotations

import subprocess
import sys

import pytest

SLOW = {
    "asyncio",
    "hashlib",
    "ipaddress",
    "json",
    "logging",
    "multiprocessing",
    "numpy",
    "pathlib",
    "selectors",
    "socket",
    "subprocess",
    "tempfile",
    "urllib",
}
"""Modules that take 1 to 100 ms, which come at their first use."""

USED_LATER = {"ncclkv.checkpoint", "ncclkv.comm.nccl", "ncclkv.doctor"}
MODULES = "print(*sys.modules)"
COMMAND = f"""
from ncclkv.cli import main
try:
    main(sys.argv[1:])
finally:
    {MODULES}
"""


def loaded(program: str, *arguments: str) -> set[str]:
    """Return the modules that a program has loaded, by itself or by NumPy."""
    command = [sys.executable, "-c", f"import sys\n{program}", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return set(done.stdout.splitlines()[-1].split())


def test_import_loads_nothing_slow():
    names = loaded(f"import ncclkv\n{MODULES}")
    assert "ncclkv.errors" in names
    assert names & SLOW == set()
    parts = ("ncclkv.arrays", "ncclkv.comm", "ncclkv.engine", "ncclkv.store")
    assert [name for name in names if name.startswith(parts)] == []


def test_version_and_errors_load_nothing_slow():
    program = f"from ncclkv import KVStoreError, __version__, errors\n{MODULES}"
    assert loaded(program) & SLOW == set()


def test_first_store_loads_no_more_than_it_needs():
    names = loaded(f"import ncclkv\nncclkv.create('local').close()\n{MODULES}")
    assert "ncclkv.store.kvstore" in names
    assert names & (USED_LATER | {"asyncio", "multiprocessing", "subprocess"}) == set()


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["rnu"], ["run", "--nn"]])
def test_command_lines_load_no_numpy(arguments):
    names = loaded(COMMAND, *arguments)
    assert "ncclkv.cli.parser" in names
    assert names & {"numpy", "asyncio", "multiprocessing", "ncclkv.store", "ncclkv.engine"} == set()
