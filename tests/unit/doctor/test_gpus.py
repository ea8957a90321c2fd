"""Rows of GPUs, CuPy and NCCL, for each state of a machine."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ncclkv.comm.nccl import library
from ncclkv.doctor import gpus
from ncclkv.doctor.probe import Ended
from ncclkv.doctor.rows import BLOCKS, OK, WARNS
from tests.harness.source import ROOT

TOPOLOGY = """        \x1b[4mGPU0    GPU1    GPU2    CPU Affinity\x1b[0m
GPU0     X      {near}    SYS     0-15
GPU1    {near}     X      SYS     0-15
GPU2    SYS     SYS      X      16-31

Legend:
  X    = Self
"""


def fake(folder: Path, name: str, text: str) -> None:
    """Make a program that prints a text."""
    (folder / "text").write_text(text)
    (folder / name).write_text(f'#!/bin/sh\ncat "{folder}/text"\n')
    (folder / name).chmod(0o755)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (TOPOLOGY.format(near="NV18"), "NV18 (1 pairs), SYS (2 pairs)"),
        ("GPU0\nGPU0  X  0-15\n", "one GPU"),
        ("nothing", "not known"),
    ],
)
def test_links_between_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, found: str
) -> None:
    fake(tmp_path, "nvidia-smi", text)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert gpus.topology().found == found


def told(**values: Any) -> Ended:
    return Ended({name.replace("_", " "): value for name, value in values.items()}, "", "")


DRIVER: dict[str, Any] = {"driver": "libcuda.so.1", "nccl": ["2.32.3", "/x/libnccl.so.2"]}


@pytest.mark.parametrize(
    ("ended", "expected"),
    [
        (
            told(**DRIVER, devices=["H100", "H100"], cuda="12.8"),
            [("GPUs", "2 x H100", OK), ("CuPy", "cupy-cuda12x 14", OK), ("NCCL", "2.32.3", OK)],
        ),
        (
            told(**DRIVER, obstacle="CuPy finds no GPU"),
            [("GPUs", "a driver, no usable GPU", WARNS), ("NCCL", "2.32.3", OK)],
        ),
        (told(no_nccl="none; pip install it"), [("GPUs", "none", OK), ("NCCL", "none", WARNS)]),
        (
            Ended({}, "was killed by SIGSEGV", "x"),
            [("GPUs", "not known", BLOCKS), ("NCCL", "none", WARNS)],
        ),
    ],
)
def test_rows_of_gpus(
    monkeypatch: pytest.MonkeyPatch, ended: Ended, expected: list[tuple[str, str, str]]
) -> None:
    monkeypatch.setattr(gpus, "ask", lambda program, seconds: ended)
    monkeypatch.setattr(gpus, "version", lambda name: "14")
    monkeypatch.setattr(gpus, "nccl_files", list)
    rows = {row.thing: row for row in gpus.rows()}
    assert [(name, rows[name].found, rows[name].level) for name, _, _ in expected] == expected


@pytest.mark.parametrize("driver", [True, False])
def test_no_cupy(monkeypatch: pytest.MonkeyPatch, driver: bool) -> None:
    ended = told(**DRIVER) if driver else told(nccl=DRIVER["nccl"])
    monkeypatch.setattr(gpus, "ask", lambda program, seconds: ended)
    monkeypatch.setattr(gpus, "_cupy", str)
    monkeypatch.setattr(gpus, "nccl_files", lambda: [Path("/x/libnccl.so.2")])
    row = {row.thing: row for row in gpus.rows()}["CuPy"]
    assert (row.found, row.level) == ("none", WARNS if driver else OK)
    assert ("ncclkv[cuda12]" in row.mend) == driver


def test_no_child_without_parts_for_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "ask", lambda program, seconds: pytest.fail("a child is not needed"))
    monkeypatch.setattr(gpus, "_cupy", str)
    monkeypatch.setattr(gpus, "nccl_files", list)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    [row] = gpus.rows()
    assert (row.thing, row.used, row.level) == ("GPUs", "host memory", OK)


TORCH = """
import ctypes
from pathlib import Path
ctypes.CDLL(str(Path(__file__).parent / "lib" / "libnccl.so.2"))
"""


@pytest.fixture
def two_nccls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield the libnccl of a torch that has its own, beside that of NVIDIA's wheel."""
    if "nvidia/nccl" not in str(next(iter(gpus.nccl_files()), "")):
        pytest.skip("NVIDIA's wheel of NCCL is not installed")
    try:
        original = Path(library.load().path)
    except OSError:
        pytest.skip("libnccl cannot be loaded here")
    folder = tmp_path / "torch" / "lib"
    folder.mkdir(parents=True)
    shutil.copy(original, folder)
    (tmp_path / "torch" / "__init__.py").write_text(TORCH)
    (tmp_path / "torch" / "version.py").write_text("cuda: str = '12.8'\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{ROOT}")
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    yield folder / original.name
    shutil.rmtree(folder)  # hundreds of megabytes


def test_two_nccls_in_one_process(two_nccls: Path) -> None:
    row = {row.thing: row for row in gpus.rows()}["NCCL files"]
    assert row.found.startswith("2: ")
    assert row.level == WARNS
    assert f"import torch loads {two_nccls} first" in row.why
    assert row.mend.startswith("import torch before ncclkv on every rank, or on none")
