"""`ncclkv.torch` is imported at its first use, and needs torch then."""

from __future__ import annotations

import subprocess
import sys

import pytest

ABSENT = "import sys; sys.modules['torch'] = None\n"
"""Makes an import of torch fail, as on a machine without it."""


def last_line(program: str) -> str:
    """Return the last line that a program writes, in a process of its own."""
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    return (run.stdout + run.stderr).splitlines()[-1]


def test_the_first_use_imports_the_package() -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    used = "import ncclkv, sys; print('torch' in sys.modules, ncclkv.torch.DataParallel.__module__)"
    assert last_line(used) == "False ncclkv.torch.data_parallel"
    assert last_line(f"{used}; print(ncclkv.torch.__name__)") == "ncclkv.torch"


def test_a_star_imports_no_torch() -> None:
    assert last_line("from ncclkv import *; import sys; print('torch' in sys.modules)") == "False"


@pytest.mark.parametrize("use", ["ncclkv.torch", "import ncclkv.torch"])
def test_without_torch_the_error_has_the_line_to_type(use: str) -> None:
    assert last_line(f"{ABSENT}import ncclkv\n{use}") == (
        "ModuleNotFoundError: ncclkv.torch needs torch, which is not installed here; "
        "type: pip install torch"
    )
