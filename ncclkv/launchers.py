"""Launchers: the variables in which each gives the count of its processes; the line to type.

A process that a launcher started together with others, and whose MPI has one rank, would train
alone without an error.  Here are the variables by which `env` recognises it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

# More digits than any count has, and fewer than Python refuses to convert.
_MOST_DIGITS = 18

_MOST_HOSTS = 3
"""Hosts of which a line to type shows each."""

SRUN = "srun"
MPICHS = "MPICH's mpirun"


class Launcher(NamedTuple):
    """A launcher that starts several processes.

    Attributes
    ----------
    name : str
    size, rank : str
        Variables of the count of processes, and of this process's index or role.
    mark : str
        Variable that distinguishes the launcher from others with the same two; empty without one.
    local_size : str
        Variable of the count of processes on this host; empty without one.
    address : str
        Variable of the first host; empty without one.
    """

    name: str
    size: str
    rank: str
    mark: str = ""
    local_size: str = ""
    address: str = ""


_TORCH = ("WORLD_SIZE", "RANK")
_OF_TORCH = ("LOCAL_WORLD_SIZE", "MASTER_ADDR")

_PMI = ("PMI_SIZE", "PMI_RANK")

# Slurm comes last: mpirun inside an allocation sees Slurm's variables too; srun alone sets these.
OF_MPI = (
    Launcher("Open MPI's mpirun", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
    Launcher("MVAPICH's mpirun", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK"),
    Launcher("Intel MPI's mpirun", *_PMI, "I_MPI_HYDRA_TOPOLIB"),
    Launcher(MPICHS, *_PMI, "HYDI_CONTROL_FD"),
    Launcher("PALS", *_PMI, "PALS_RANKID"),
    Launcher(SRUN, *_PMI, "SLURM_STEP_NUM_TASKS"),
    Launcher("mpirun", *_PMI),
    Launcher("jsrun", "JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_RANK"),
    Launcher("Flux", "FLUX_JOB_SIZE", "FLUX_TASK_RANK"),
    Launcher(SRUN, "SLURM_STEP_NUM_TASKS", "SLURM_PROCID"),
)
"""Launchers whose processes are ranks of MPI."""

OTHERS = (
    Launcher("accelerate", *_TORCH, "ACCELERATE_MIXED_PRECISION", *_OF_TORCH),
    Launcher("torchrun", *_TORCH, "TORCHELASTIC_RUN_ID", *_OF_TORCH),
    Launcher("DeepSpeed's launcher", *_TORCH, "CROSS_SIZE", "LOCAL_SIZE", "MASTER_ADDR"),
    Launcher("a launcher of torch, such as Kubeflow's,", *_TORCH, "", *_OF_TORCH),
    Launcher("MXNet's launcher", "DMLC_NUM_WORKER", "DMLC_ROLE"),
    Launcher("horovodrun", "HOROVOD_SIZE", "HOROVOD_RANK", local_size="HOROVOD_LOCAL_SIZE"),
    Launcher("Paddle's launcher", "PADDLE_TRAINERS_NUM", "PADDLE_TRAINER_ID"),
)
"""Launchers of which MPI does not know: each of their processes is a job of one rank."""

RANK_ONLY = ("PMIX_RANK", "PALS_RANKID", "ALPS_APP_PE", "PMI_ID")
"""Variables of launchers of MPI that give a rank, and may give no count of ranks."""

PMIX, PMI = "PMIx", "PMI"
"""Protocols between ranks and launcher."""


class Started(NamedTuple):
    """Launcher of this process, and the count of processes that it has started.

    Attributes
    ----------
    launcher : Launcher
    size : int
    rank : int or None
        None where the launcher gives no index.
    role : str
        A role such as ``"worker"``, where the launcher gives one instead of an index; else empty.
    hosts : tuple of str
        A name for each of several hosts with its count of processes, such as ``"HOST1:4"``; empty
        for one host, or where the launcher does not give them.
    """

    launcher: Launcher
    size: int
    rank: int | None
    role: str = ""
    hosts: tuple[str, ...] = ()

    @property
    def several(self) -> bool:
        """Return whether other processes do the same: each server runs the program, too."""
        return self.size > 1 or self.is_server

    @property
    def is_server(self) -> bool:
        """Return whether this process is a server of MXNet, or their scheduler."""
        return self.role in ("server", "scheduler")


def as_int(text: str) -> int | None:
    """Return a text as a whole number; None if it is none."""
    return int(text) if text.isdecimal() and len(text) <= _MOST_DIGITS else None


def started_by(rows: Iterable[Launcher], environment: Mapping[str, str]) -> Iterator[Started]:
    """Yield each launcher of `rows` whose variable of the count of processes is set.

    Examples
    --------
    >>> [started] = started_by(OTHERS, {"WORLD_SIZE": "2", "RANK": "1"})
    >>> started.size, started.rank
    (2, 1)
    """
    for launcher in rows:
        size = as_int(environment.get(launcher.size, ""))
        if size is not None and (not launcher.mark or environment.get(launcher.mark)):
            text = environment.get(launcher.rank, "")
            rank = as_int(text)
            role = text if rank is None else ""
            yield Started(launcher, size, rank, role, _hosts(launcher, size, environment))


def protocol(environment: Mapping[str, str]) -> str:
    """Return the protocol by which the launcher awaits ranks; empty if it is not known."""
    pmix = "PMIX_NAMESPACE" in environment
    pmi = "PMI_FD" in environment or "PMI_PORT" in environment
    return "" if pmi == pmix else PMIX if pmix else PMI


def _hosts(launcher: Launcher, size: int, environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return a name for each of several hosts, with its count of processes."""
    local = as_int(environment.get(launcher.local_size, ""))
    if not local or size <= local:
        return ()
    first = environment.get(launcher.address) or "HOST1"
    names = [first, *(f"HOST{index}" for index in range(2, -(-size // local) + 1))]
    return tuple(f"{name}:{local}" for name in names)


def line_to_type(size: int | None, hosts: tuple[str, ...] = ()) -> str:
    """Return the line that starts this program on `size` ranks, or on hosts."""
    where = f"-n {size or 'RANKS'}"
    if hosts:
        shown = (hosts[0], "...", hosts[-1]) if len(hosts) > _MOST_HOSTS else hosts
        where = f"--hosts {','.join(shown)}"
    return f"ncclkv run {where} -- {this_program()}"


def this_program() -> str:
    """Return the command line of this program, as a user would type it."""
    import shlex  # only for errors

    script = sys.argv[0] if sys.argv else ""
    # Also a process that multiprocessing has spawned has its parent's arguments.
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    if script in ("", "-", "-c") or hasattr(sys, "ps1"):
        return f"{_python()} SCRIPT"
    # A folder and a zip archive have a spec, too, whose name Python does not find again.
    module = "__main__" if spec is None else spec.name
    words = [script] if module == "__main__" else ["-m", module.removesuffix(".__main__")]
    return shlex.join([_python(), *words, *sys.argv[1:]])


def _python() -> str:
    """Return the name of this Python, or its path where another Python has that name."""
    import shutil

    folder = os.path.dirname(sys.executable)
    names = ("python", "python3")
    found = (name for name in names if os.path.dirname(shutil.which(name) or "") == folder)
    return next(found, sys.executable)
