"""The start of Python in each process of layer 3b: it installs the emulated modules.

The launcher, ``python -m tests.nccl.emulated``, puts this folder on PYTHONPATH. A sitecustomize
that this one hides is run afterwards.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def load(name: str, path: Path) -> object:
    """Run a file as a module whose folder is not on the path."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def run_hidden() -> None:
    """Run the sitecustomize that would have run without this one."""
    folders = [folder for folder in sys.path if Path(folder or ".").resolve() != HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", folders)
    if spec and spec.loader:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


if os.environ.get("NCCLKV_EMULATED") == "1":
    load("_emulated_places", HERE / "places.py").install()  # type: ignore[attr-defined]
run_hidden()
