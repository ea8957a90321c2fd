"""The environment, read here and nowhere else.

========================  ====================================================================
``NCCLKV_TIMEOUT``        seconds that a store waits for its ranks (300); an argument wins over it
``NCCLKV_RANKS_PER_NODE``  at most so many ranks share memory; the others are taken for other nodes
``NCCLKV_NODE_MEMORY``    how ranks of a node share memory: ``files``, ``window``, ``halves`` or
                          ``messages``; by default the first of these that works
``NCCLKV_COMPILED``       ``0``: host arrays are summed, updated and copied by NumPy alone
``NCCLKV_CHECKPOINT``     the directory of ``kv.save`` and ``kv.load`` that are given none
``NCCLKV_RESTART``        how often the job was restarted; set by ``ncclkv run``, read by programs
``NCCLKV_ABORT``          ``0``: an uncaught exception on one rank does not end the job, nor does a
                          call of MPI, NCCL or CUDA that never returns
``NCCLKV_SHARE_GPU``      ``1``: ranks may share a GPU, which NCCL is told to put up with
``NCCLKV_NCCL_BINDING``   ``cupy`` or ``nccl4py``: what calls NCCL; nccl4py where it is installed
``NCCL_COMM_BLOCKING``    NCCL's own; ``0`` is refused where CuPy calls NCCL, which it cannot then
launcher's variables      how many ranks were started and which one this is
========================  ====================================================================
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

from ncclkv.errors import LaunchError, UsageError

DEFAULT_TIMEOUT = 300.0

# A century: more is not a time to wait for, and would not fit the clock.
_LONGEST = 3e9

NODE_MEMORY = ("files", "window", "halves", "messages")
"""What ``NCCLKV_NODE_MEMORY`` may be, the best first."""

NCCL_BINDINGS = ("cupy", "nccl4py")
"""What ``NCCLKV_NCCL_BINDING`` may be."""

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


def timeout(given: Any = None) -> float:
    """Seconds that a wait may take: those `given` as an argument, or else the environment's."""
    if given is None:
        return _timeout_here()
    number = isinstance(given, Real) and not isinstance(given, bool)
    if not (number and 0 < given <= _LONGEST):
        raise UsageError(f"timeout={given!r} is not a number of seconds; give one above 0")
    return float(given)


def _timeout_here() -> float:
    """What ``NCCLKV_TIMEOUT`` says, or 300."""
    text = os.environ.get("NCCLKV_TIMEOUT", "")
    if not text:
        return DEFAULT_TIMEOUT
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= _LONGEST:
        raise LaunchError(
            f"NCCLKV_TIMEOUT={text!r} is not a number of seconds; set one above 0, or unset it "
            f"for the default of {DEFAULT_TIMEOUT:g}"
        )
    return seconds


def split_node(ranks: Sequence[int], rank: int) -> list[int]:
    """Those of a machine's ranks that are taken for one node with `rank`."""
    ranks = list(ranks)
    most = _number("NCCLKV_RANKS_PER_NODE") or len(ranks)
    first = ranks.index(rank) // most * most
    return ranks[first : first + most]


def node_memory() -> str:
    """The first way to share memory that the ranks of a node are to try."""
    name = os.environ.get("NCCLKV_NODE_MEMORY", "") or NODE_MEMORY[0]
    if name not in NODE_MEMORY:
        raise LaunchError(
            f"NCCLKV_NODE_MEMORY={name!r} is no way to share memory; set one of "
            f"{', '.join(NODE_MEMORY)}, or unset it for the first that works"
        )
    return name


def checkpoint() -> str:
    """The directory of checkpoints; empty when none is named."""
    return os.environ.get("NCCLKV_CHECKPOINT", "")


def restarts() -> int:
    """How often this job was started before; 0 without a launcher that says so."""
    return _number("NCCLKV_RESTART") or 0


def compiled() -> bool:
    """Whether the kernels in C may be used, where they were built."""
    return os.environ.get("NCCLKV_COMPILED", "1") != "0"


def abort_on_exception() -> bool:
    """Whether an uncaught exception on one rank should end the whole job."""
    return os.environ.get("NCCLKV_ABORT", "1") != "0"


def share_gpu() -> bool:
    """Whether ranks share a GPU on purpose."""
    return os.environ.get("NCCLKV_SHARE_GPU", "0") not in ("", "0")


def nccl_binding() -> str:
    """Which binding to NCCL was chosen, ``cupy`` or ``nccl4py``; empty when none was."""
    name = os.environ.get("NCCLKV_NCCL_BINDING", "")
    if name not in ("", *NCCL_BINDINGS):
        raise LaunchError(
            f"NCCLKV_NCCL_BINDING={name!r} is no binding to NCCL; set {' or '.join(NCCL_BINDINGS)}"
        )
    return name


def nccl_blocks() -> bool:
    """Whether NCCL's calls return when they are done, as they do unless told otherwise."""
    return os.environ.get("NCCL_COMM_BLOCKING", "1").strip() != "0"


def set_unless_set(settings: Mapping[str, str]) -> None:
    """Give libraries of this process, such as NCCL, settings that the user has not made."""
    for name, value in settings.items():
        os.environ.setdefault(name, value)


def for_ranks(settings: Mapping[str, str], unless_set: Mapping[str, str]) -> dict[str, str]:
    """The environment of a job's ranks: this process's, with `settings`, and others if missing."""
    return {**unless_set, **os.environ, **settings}
