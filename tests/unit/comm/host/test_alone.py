"""An MPI library that does not join its launcher, which started several processes."""

from __future__ import annotations

import sys

import pytest

from ncclkv import launchers
from ncclkv.comm.host.alone import check_library, check_size
from ncclkv.errors import LaunchError
from ncclkv.launchers import OF_MPI, OTHERS, RANK_ONLY

MPICH = "MPICH Version:      5.0.2\nMPICH configure:    --with-device=ch4:ucx,ofi\n"
MPICH_PMIX = "MPICH Version:      4.3.0\nMPICH configure:    --with-pmix=/usr\n"
MVAPICH = "MVAPICH Version:    4.0\nMVAPICH configure:  --with-pm=hydra\n"
CRAY = "MPI VERSION    : CRAY MPICH version 8.1.28.29 (ANL base 3.4a2)\n"
INTEL = "Intel(R) MPI Library 2021.18 for Linux* OS\n"
OPEN_MPI = "Open MPI v5.0.11, package: Open MPI user@localhost, ident: 5.0.11\0"
OPEN_MPI_4 = "Open MPI v4.1.4, package: Debian OpenMPI, ident: 4.1.4\0"

BY_OPEN_MPI = {
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_RANK": "0",
    "PMIX_NAMESPACE": "prterun-node1-1@1",
    "PMIX_RANK": "0",
}
BY_HYDRA = {"PMI_SIZE": "4", "PMI_RANK": "0", "PMI_FD": "9", "HYDI_CONTROL_FD": "7"}
BY_SRUN = {"SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "0"}
BY_SRUN_PMI2 = {**BY_SRUN, "PMI_SIZE": "4", "PMI_RANK": "0", "PMI_FD": "9"}
BY_SRUN_PMIX = {**BY_SRUN, "PMIX_NAMESPACE": "slurm.pmix.7.0", "PMIX_RANK": "0"}
BY_PRUN = {"PMIX_NAMESPACE": "x", "PMIX_RANK": "1"}

RUN = "ncclkv run -n 4 -- python train.py"

Settings = dict[str, str]


@pytest.fixture(autouse=True)
def program(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the variables of all launchers; the program is ``python train.py``."""
    names = {name for each in (*OF_MPI, *OTHERS) for name in each[1:] if name}
    for name in {*names, *RANK_ONLY, "PMIX_NAMESPACE", "PMI_FD", "PMI_PORT", "NCCLKV_ALONE"}:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "argv", ["train.py"])
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", None)
    monkeypatch.setattr(launchers, "_python", lambda: "python")


@pytest.mark.parametrize(
    ("settings", "library", "said", "line"),
    [
        (BY_OPEN_MPI, MPICH, "Open MPI's mpirun|OMPI_COMM_WORLD_SIZE=4|MPICH 5.0.2", RUN),
        (BY_OPEN_MPI, MVAPICH, "Open MPI's mpirun|OMPI_COMM_WORLD_SIZE=4|MVAPICH 4.0", RUN),
        (BY_HYDRA, OPEN_MPI, "MPICH's mpirun|PMI_SIZE=4|Open MPI v5.0.11", RUN),
        (
            {**BY_HYDRA, "I_MPI_HYDRA_TOPOLIB": "hwloc"},
            OPEN_MPI,
            "Intel MPI's mpirun|PMI_SIZE=4|Open MPI v5.0.11",
            RUN,
        ),
        (
            BY_SRUN_PMIX,
            MPICH,
            "srun|SLURM_STEP_NUM_TASKS=4|MPICH 5.0.2",
            "srun --mpi=pmi2 -n 4 python train.py",
        ),
        (
            BY_SRUN_PMI2,
            OPEN_MPI,
            "srun|PMI_SIZE=4|Open MPI v5.0.11",
            "srun --mpi=pmix -n 4 python train.py",
        ),
        (
            BY_PRUN,
            MPICH,
            "a launcher of MPI|PMIX_RANK=1|MPICH 5.0.2",
            "ncclkv run -n RANKS -- python train.py",
        ),
    ],
)
def test_a_library_without_the_protocol_of_the_launcher(
    settings: Settings, library: str, said: str, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in settings.items():
        monkeypatch.setenv(name, text)
    with pytest.raises(LaunchError) as caught:
        check_library(library)
    who, variable, name = said.split("|")
    assert str(caught.value) == (
        f"{who} started this process ({variable}), but {name}, which mpi4py loads, does not join "
        f"its ranks; type: {line}"
    )
    assert caught.value.on_every_rank


@pytest.mark.parametrize(
    ("settings", "library"),
    [
        ({}, MPICH),
        ({}, OPEN_MPI),
        (BY_OPEN_MPI, OPEN_MPI),
        (BY_OPEN_MPI, OPEN_MPI_4),
        (BY_OPEN_MPI, MPICH_PMIX),
        (BY_OPEN_MPI, CRAY),
        (BY_OPEN_MPI, INTEL),
        (BY_HYDRA, MPICH),
        (BY_HYDRA, MVAPICH),
        (BY_HYDRA, INTEL),
        (BY_SRUN, MPICH),
        (BY_SRUN_PMI2, MPICH),
        (BY_SRUN_PMI2, OPEN_MPI_4),
        (BY_SRUN_PMIX, OPEN_MPI),
        ({**BY_OPEN_MPI, **BY_HYDRA}, MPICH),
        ({**BY_OPEN_MPI, **BY_HYDRA}, OPEN_MPI),
    ],
)
def test_a_library_that_may_join_is_started(
    settings: Settings, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in settings.items():
        monkeypatch.setenv(name, text)
    check_library(library)


@pytest.mark.parametrize(
    ("settings", "library", "line"),
    [
        (BY_SRUN, MPICH, "srun --mpi=pmi2 -n 4 python train.py"),
        (BY_SRUN, INTEL, "srun --mpi=pmi2 -n 4 python train.py"),
        (BY_SRUN, OPEN_MPI_4, "srun --mpi=pmix -n 4 python train.py"),
        (BY_OPEN_MPI, INTEL, RUN),
        (BY_HYDRA, OPEN_MPI_4, RUN),
        ({"FLUX_JOB_SIZE": "4", "FLUX_TASK_RANK": "1"}, MPICH, RUN),
        ({"PMI_ID": "1"}, MPICH, "ncclkv run -n RANKS -- python train.py"),
        # The usual program of torch sets its variables to Slurm's numbers.
        (
            {**BY_SRUN, "WORLD_SIZE": "4", "RANK": "0"},
            MPICH,
            "srun --mpi=pmi2 -n 4 python train.py",
        ),
    ],
)
def test_a_started_library_sees_one_rank(
    settings: Settings, library: str, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in settings.items():
        monkeypatch.setenv(name, text)
    with pytest.raises(LaunchError) as caught:
        check_size(1, library)
    assert str(caught.value).endswith(
        f", which mpi4py loads, does not join its ranks; type: {line}"
    )
    assert caught.value.on_every_rank
    monkeypatch.setenv("NCCLKV_ALONE", "1")
    check_size(1, library)


def test_torchrun_under_srun(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in {**BY_SRUN, "WORLD_SIZE": "16", "RANK": "3"}.items():
        monkeypatch.setenv(name, text)
    with pytest.raises(LaunchError, match=r"^WORLD_SIZE=16 says that "):
        check_size(1, MPICH)


@pytest.mark.parametrize("size", [2, 3])
def test_several_ranks_of_mpi_may_have_any_variables(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in {"WORLD_SIZE": "8", "RANK": "0", "PMI_SIZE": str(size)}.items():
        monkeypatch.setenv(name, text)
    check_size(size, MPICH)


def test_fewer_ranks_than_the_launcher_started(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in BY_HYDRA.items():
        monkeypatch.setenv(name, text)
    with pytest.raises(LaunchError, match="does not join its ranks"):
        check_size(2, MPICH)
