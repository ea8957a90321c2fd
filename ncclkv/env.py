"""The environment, read here and nowhere else.

=====================  =======================================================================
``NCCLKV_TIMEOUT``     seconds that a store waits for its ranks (300); an argument wins over it
``NCCLKV_ABORT``       ``0``: an uncaught exception on one rank does not end the job
launcher's variables   how many ranks were started and which one this is
=====================  =======================================================================
"""

from __future__ import annotations

import os

from ncclkv.errors import LaunchError

DEFAULT_TIMEOUT = 300.0

# One row a launcher: its variable for the number of ranks, and for this one.  Slurm comes last,
# for an mpirun inside an allocation sees Slurm's variables too; its own are set by srun alone.
_LAUNCHERS = (
    ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
    ("MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK"),
    ("PMI_SIZE", "PMI_RANK"),
    ("FLUX_JOB_SIZE", "FLUX_TASK_RANK"),
    ("SLURM_STEP_NUM_TASKS", "SLURM_PROCID"),
)

# Set by launchers that tell a rank but not how many there are.
_RANK_ONLY = ("PMIX_RANK",)


def _number(name: str) -> int | None:
    """The variable as a whole number, or None when it is absent or something else."""
    text = os.environ.get(name, "")
    return int(text) if text.isdigit() else None


def launched_size() -> int | None:
    """How many ranks the launcher says it started; None without a launcher that says so."""
    for size, _ in _LAUNCHERS:
        if (count := _number(size)) is not None:
            return count
    return None


def launched_rank() -> int | None:
    """Which rank the launcher says this is; None without a launcher that says so."""
    for size, rank in _LAUNCHERS:
        if _number(size) is not None:
            return _number(rank)
    return None


def launched_without_size() -> bool:
    """Whether a launcher is there that does not tell how many ranks it started."""
    return launched_size() is None and any(name in os.environ for name in _RANK_ONLY)


def timeout() -> float:
    """Seconds that a wait may take, unless an argument says otherwise."""
    text = os.environ.get("NCCLKV_TIMEOUT", "")
    if not text:
        return DEFAULT_TIMEOUT
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not seconds > 0:
        raise LaunchError(
            f"NCCLKV_TIMEOUT={text!r} is not a positive number of seconds; "
            f"unset it for the default of {DEFAULT_TIMEOUT:g}"
        )
    return seconds


def abort_on_exception() -> bool:
    """Whether an uncaught exception on one rank should end the whole job."""
    return os.environ.get("NCCLKV_ABORT", "1") != "0"
