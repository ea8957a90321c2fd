"""Allocation of a batch system: its count of ranks, and the variable by which mpirun finds it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from ncclkv import env
from ncclkv.cli import host_lists
from ncclkv.errors import LaunchError

_HOST_FILES = (
    *("HYDRA_HOST_FILE", "I_MPI_HYDRA_HOST_FILE"),
    *("PRTE_MCA_prte_default_hostfile", "OMPI_MCA_orte_default_hostfile"),
)
"""Variables by which the user gives mpirun a hostfile."""

_HOST_VARIABLES = (
    *("SLURM_JOB_ID", "PBS_NODEFILE", "PBS_JOBID", "LSB_DJOB_HOSTFILE", "LSB_HOSTS"),
    *("PE_HOSTFILE", "COBALT_NODEFILE", "FLUX_JOB_ID"),
    *_HOST_FILES,
)
"""Variables by which a batch system or the user gives mpirun hosts."""

# Of Slurm, LSF and Grid Engine.
_COUNTS = ("SLURM_NTASKS", "SLURM_NPROCS", "LSB_DJOB_NUMPROC", "NSLOTS")

# Slurm's form, such as "4(x2),3" for two nodes with 4 tasks and a node with 3.
_ON_NODES = re.compile(r"(\d+)(?:\(x(\d+)\))?")


class Allocated(NamedTuple):
    """Count of ranks for which there is room, and the variable that gives the count."""

    ranks: int
    source: str


def host_variable() -> str:
    """Return the name of the variable by which mpirun finds hosts; empty without one."""
    environment = env.for_ranks({}, {})
    return next((name for name in _HOST_VARIABLES if environment.get(name)), "")


def allocated() -> Allocated | None:
    """Return the ranks of the allocation, as a launcher would take them; None without a count.

    Raises
    ------
    LaunchError
        When a launcher has started several copies of this command, or when a file that a variable
        names cannot be read.
    """
    copies = env.launched_size() or 1
    if copies > 1:
        raise LaunchError(
            f"a launcher started {copies} copies of ncclkv run, and each would start a job; start "
            f"it once, without that launcher: it finds the hosts and ranks of the allocation; in "
            f"a shell that the launcher has started give -n"
        )
    environment = env.for_ranks({}, {})
    return _by_host_file(environment) or _by_batch_system(environment)


def _by_host_file(environment: Mapping[str, str]) -> Allocated | None:
    """Return the ranks of a hostfile that the user's variables name."""
    for name in _HOST_FILES:
        if text := environment.get(name):
            ranks, _ = host_lists.place_ranks(host_lists.read(Path(text), name), None)
            return Allocated(ranks, f"{name}={text}")
    return None


def _by_batch_system(environment: Mapping[str, str]) -> Allocated | None:
    """Return the ranks that a batch system has set."""
    for name in _COUNTS:
        count = environment.get(name, "")
        if count.isdecimal() and int(count) > 0:
            return Allocated(int(count), f"{name}={count}")
    if text := environment.get("SLURM_TASKS_PER_NODE"):
        # Without --ntasks, Slurm sets no other variable.
        ranks = sum(int(tasks) * int(nodes or 1) for tasks, nodes in _ON_NODES.findall(text))
        return Allocated(ranks, f"SLURM_TASKS_PER_NODE={text}") if ranks else None
    if text := environment.get("PBS_NODEFILE"):
        # A line for each rank: hosts repeat.
        try:
            ranks = len(Path(text).read_text().split())
        except (OSError, UnicodeDecodeError) as error:
            raise LaunchError(f"PBS_NODEFILE={text} cannot be read ({error}); give -n") from error
        return Allocated(ranks, f"the lines of PBS_NODEFILE={text}") if ranks else None
    return None
