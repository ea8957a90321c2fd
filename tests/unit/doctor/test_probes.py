"""Probes of the doctor that need no ranks: each state of a thing has its row."""

from __future__ import annotations

import resource
import shutil
import sys
from collections.abc import Iterator
from configparser import ConfigParser
from pathlib import Path
from typing import Any

import pytest

from ncclkv.cli import launch_rows
from ncclkv.comm.nccl import library
from ncclkv.doctor import gpus, host, selftest, variables, versions
from ncclkv.doctor.child import Ended
from ncclkv.doctor.rows import BLOCKS, OK, WARNS, Report, Row
from ncclkv.kernels.host import compiled
from tests.harness.source import ROOT


def test_oldest_versions_are_those_of_the_package() -> None:
    config = ConfigParser()
    config.read(ROOT / "setup.cfg")
    wanted = config["options"]["install_requires"].split()
    assert wanted == [f"{name.lower()}>={oldest}" for name, oldest in versions.OLDEST.items()]


def test_kernels_that_are_not_built_name_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "BUILT", False)
    monkeypatch.setattr(compiled, "active", False)
    row = {row.thing: row for row in versions.rows()}["C kernels"]
    assert (row.found, row.used, row.level) == ("not built", "NumPy", WARNS)
    assert row.mend.endswith(f"{sys.executable} -m pip install -e {ROOT}")


def test_a_hard_limit_of_files_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "free_descriptors", lambda: 40)
    monkeypatch.setattr(resource, "getrlimit", lambda number: (60, 70))
    row = host.open_files(4)
    assert row.level == WARNS
    assert row.used == "88 needed by 4 ranks of a host"
    assert row.mend == "ulimit -n 1024, by root: the hard limit is 70"
    assert host.open_files(1).level == OK


def test_names_that_no_host_has() -> None:
    row = host.names("named hosts", ["localhost", "no.such.host.invalid"], needed=True)
    assert row.level == BLOCKS
    assert row.found.startswith("localhost is ")
    assert row.why.startswith("no.such.host.invalid has no address")
    assert "/etc/hosts" in row.mend
    assert host.names("host name", ["no.such.host.invalid"], needed=False).level == OK


@pytest.mark.parametrize(("source", "level"), [("tsc", OK), ("hpet", WARNS)])
def test_slow_clocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, level: str
) -> None:
    (tmp_path / "clock").write_text(f"{source}\n")
    monkeypatch.setattr(host, "_CLOCK", tmp_path / "clock")
    assert host.clock()[:2] == ("clock source", source)
    assert host.clock().level == level


def test_long_values_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UCX_TLS", "x" * 100)
    for number in range(8):
        monkeypatch.setenv(f"NCCL_{number}", "1")
    row = {row.thing: row for row in variables.rows()}["other settings"]
    assert row.found.endswith("NCCL_5=1, 3 more")
    monkeypatch.undo()
    monkeypatch.setenv("UCX_TLS", "x" * 100)
    row = {row.thing: row for row in variables.rows()}["other settings"]
    assert f"UCX_TLS={'x' * 40}..." in row.found


def test_a_store_for_each_process_on_purpose(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in {"WORLD_SIZE": "2", "RANK": "0", "NCCLKV_ALONE": "1"}.items():
        monkeypatch.setenv(name, text)
    row = next(variables.rows())
    assert (row.thing, row.level) == ("launcher", OK)
    assert row.used == "a store for each process: NCCLKV_ALONE=1"


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


@pytest.mark.parametrize(
    ("values", "thing", "found", "level"),
    [
        ({"on_gpus": "", "a_gpu": 2}, "store dist", "GPU memory, by NCCL", OK),
        ({"on_gpus": "no driver; with one, x", "gpus": 0}, "store dist", "host memory", OK),
        ({"on_gpus": "they share; set x", "gpus": 1}, "store dist", "host memory", WARNS),
        ({"sums": ["float32 1000"]}, "sums", "wrong: float32 1000", BLOCKS),
        ({"gpu_sums": []}, "GPU sums", "exact", OK),
        ({"clocks": 0.5}, "clocks", "0.50 s apart", OK),
        ({"clocks": 90.0}, "clocks", "90.00 s apart", WARNS),
        ({"sharing": ["", "are alone", []]}, "node memory", "one rank a host", OK),
        (
            {"sharing": ["messages", "exchange messages", ["files: rank 0 cannot open the memory "
             "file of rank 1: x"]]},
            "node memory", "messages", WARNS,
        ),
        (
            {"speed": {"nbytes": 1 << 26, "allreduce": 2.0, "right": True, "copy": 5.0}},
            "allreduce", "2 GB/s (3 on the bus), 64 MiB", OK,
        ),
        (
            {"speed": {"nbytes": 1 << 26, "allreduce": 2.0, "right": False, "copy": 5.0}},
            "allreduce", "wrong: float32 allreduce", BLOCKS,
        ),
        ({"error": "no join; type: x", "step": "starting MPI"}, "self-test",
         "failed while starting MPI", BLOCKS),
    ],
)  # fmt: skip
def test_rows_of_a_trial(values: dict[str, Any], thing: str, found: str, level: str) -> None:
    ended = told(joined={"size": 4, "library": "MPICH 5"}, **values)
    rows = {row.thing: row for row in selftest.rows(ended)}
    assert (rows[thing].found, rows[thing].level) == (found, level)


@pytest.mark.parametrize(
    ("problem", "last", "mend"),
    [
        ("was killed by SIGBUS (often a full /dev/shm: see df /dev/shm)", "", "make /dev/shm larg"),
        ("was killed by SIGSEGV", "", "start ranks by the mpirun of the MPI that mpi4py loads"),
        (
            "was killed by SIGABRT",
            "ncclkv: rank 0 failed, ending the job: starting MPI took more than 10 s; look",
            "see the other ranks' rows",
        ),
    ],
)
def test_crashes_of_a_trial(problem: str, last: str, mend: str) -> None:
    [row] = selftest.rows(Ended({"step": "starting MPI"}, problem, last))
    assert row.level == BLOCKS
    assert row.mend.startswith(mend)


@pytest.mark.parametrize(
    ("usage", "level"), [((64 << 20, 0, 32 << 20), OK), ((64 << 20, 0, 31 << 20), WARNS)]
)
def test_space_for_the_files_of_mpi(
    monkeypatch: pytest.MonkeyPatch, usage: tuple[int, int, int], level: str
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    assert launch_rows.shared_memory(4).level == level
    assert launch_rows.shared_memory(1).level == OK


def test_no_dev_shm(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> None:
        raise FileNotFoundError(2, "No such file", str(path))

    monkeypatch.setattr(shutil, "disk_usage", refuse)
    assert launch_rows.shared_memory(4).level == BLOCKS


def test_ranks_of_each_host_and_missing_ones() -> None:
    reports = [Report(rank, f"node{rank % 2}", []) for rank in (0, 1, 2)]
    assert launch_rows.ranks(3, reports).used == "ranks 0, 2 on node0; rank 1 on node1"
    row: Row = launch_rows.ranks(4, reports, "the job failed: x")
    assert (row.found, row.level) == ("3 of 4", BLOCKS)
    assert row.why == "no report of rank 3; the job failed: x"
