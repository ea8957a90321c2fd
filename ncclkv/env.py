"""The environment, read here and nowhere else.

Readers are strict: a value that a variable cannot have is a `LaunchError`.  What is read on import
takes its default instead; `check`, at the creation of every communicator, then refuses the value.

========================  ====================================================================
``NCCLKV_TIMEOUT``        seconds that a store waits for its ranks (300); an argument wins over it
``NCCLKV_RANKS_PER_NODE``  at most so many ranks share memory; the others are taken for other nodes
``NCCLKV_NODE_MEMORY``    how ranks of a node share memory: ``files``, ``halves`` or ``messages``;
                          by default the first of these that works
``NCCLKV_COMPILED``       ``0``: host arrays are summed, updated and copied by NumPy alone
``NCCLKV_CHECKPOINT``     the directory of ``kv.save`` and ``kv.load`` that are given none
``NCCLKV_DUMP``           a directory to which each rank writes what it knows when its store
                          breaks, for ``ncclkv explain``
``NCCLKV_RESTART``        how often the job was restarted; set by ``ncclkv run``, read by programs
``NCCLKV_RUN_SECRET``     and ``NCCLKV_RUN_EVENTS``: set by ``ncclkv run`` for its own use
``NCCLKV_ABORT``          ``0``: an uncaught exception on one rank does not end the job, nor does a
                          call of MPI, NCCL or CUDA that never returns
``NCCLKV_EXIT_TIMEOUT``   seconds after which a rank that waits for others at its end ends the job;
                          by default it waits on, and names the late ranks at every timeout
``NCCLKV_TRACEBACK``      ``full``: tracebacks of the package's errors show its own frames, too;
                          by default, ``user``, the program's alone
``NCCLKV_SHARE_GPU``      ``1``: ranks may share a GPU, which NCCL is told to put up with
``NCCLKV_NCCL_BINDING``   ``cupy`` or ``nccl4py``: what calls NCCL; nccl4py where it is installed
``NCCLKV_KERNEL_CACHE``   the directory of compiled CUDA kernels; ``0``: they are not kept
``NCCL_COMM_BLOCKING``    NCCL's own; ``0`` is refused where CuPy calls NCCL, which it cannot then
launcher's variables      how many ranks were started and which one this is
========================  ====================================================================
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from numbers import Real
from typing import Any

from ncclkv import values
from ncclkv.errors import LaunchError, UsageError
from ncclkv.overlay import Overlay

DEFAULT_TIMEOUT = 300.0

_PREFIX = "NCCLKV_"

NODE_MEMORY = ("files", "halves", "messages")
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

temporarily = Overlay(os.environ).block
"""Sets variables within a block, for a library of this process that reads them there."""

# Set by launchers that tell a rank but not how many there are.
_RANK_ONLY = ("PMIX_RANK",)


def _text(name: str) -> str:
    """Return the variable, empty when it is unset."""
    return os.environ.get(name, "")


def _number(name: str) -> int | None:
    """Return the variable as a whole number, or None when it is absent or something else."""
    return values.number(_text(name))


def _whole(name: str, least: int) -> int | None:
    """Return the variable as a whole number of at least `least`; None when it is unset."""
    return values.whole(name, _text(name), least)


def _seconds(name: str, unset: str = "") -> float | None:
    """Return the variable as seconds, or None when it is unset."""
    return values.seconds(name, _text(name), unset)


def _check_pair(name: str, one: str = "0", other: str = "1") -> None:
    """Refuse a value other than the two; by default those of a switch."""
    values.check_pair(name, _text(name), one, other)


def _switch(name: str, *, usual: bool) -> bool:
    """Return whether a switch is on: its default when it is unset, or wrong, which is for `check`.

    Switches are read on import, where an error on one rank would leave the others waiting.
    """
    return {"0": False, "1": True}.get(os.environ.get(name, ""), usual)


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


def launcher_connection() -> int | None:
    """Return the descriptor by which MPICH's mpirun talks to a rank; None where none is named."""
    return _number("PMI_FD")


def launched_without_size() -> bool:
    """Whether a launcher is there that does not tell how many ranks it started."""
    return launched_size() is None and any(name in os.environ for name in _RANK_ONLY)


def timeout(given: Any = None) -> float:
    """Seconds that a wait may take: those `given` as an argument, or else the environment's."""
    if given is None:
        return _timeout_here()
    number = isinstance(given, Real) and not isinstance(given, bool)
    if not (number and 0 < given <= values.LONGEST):
        raise UsageError(f"timeout={given!r} is not a number of seconds; give one above 0")
    return float(given)


def _timeout_here() -> float:
    """What ``NCCLKV_TIMEOUT`` says, or 300."""
    usual = DEFAULT_TIMEOUT
    return _seconds("NCCLKV_TIMEOUT", f" for the default of {usual:g}") or usual


def exit_timeout() -> float | None:
    """Return the seconds after which a wait at the end of a rank ends the job; None for never."""
    return _seconds("NCCLKV_EXIT_TIMEOUT")


def full_traceback() -> bool:
    """Return whether tracebacks show the package's own frames."""
    return os.environ.get("NCCLKV_TRACEBACK", "") == "full"


def ranks_per_node() -> int | None:
    """Return the limit on the ranks that share memory, or None."""
    return _whole("NCCLKV_RANKS_PER_NODE", 1)


def split_node(ranks: Sequence[int], rank: int) -> list[int]:
    """Those of a machine's ranks that are taken for one node with `rank`."""
    ranks = list(ranks)
    # A wrong value is refused by `check`, on all ranks.
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


def dump() -> str:
    """Return the directory for reports of broken stores; empty when there are to be none."""
    return os.environ.get("NCCLKV_DUMP", "")


def own_variables() -> dict[str, str]:
    """Return the variables of this package that are set."""
    return {name: text for name, text in os.environ.items() if name.startswith(_PREFIX)}


def restarts() -> int:
    """Return how often this job was started before; 0 without a launcher that says so."""
    return _whole("NCCLKV_RESTART", 0) or 0


def under_runner() -> bool:
    """Return whether ``ncclkv run`` started this process."""
    return "NCCLKV_RESTART" in os.environ


def compiled() -> bool:
    """Whether the kernels in C may be used, where they were built."""
    return _switch("NCCLKV_COMPILED", usual=True)


def abort_on_exception() -> bool:
    """Whether an uncaught exception on one rank should end the whole job."""
    return _switch("NCCLKV_ABORT", usual=True)


def share_gpu() -> bool:
    """Whether ranks share a GPU on purpose."""
    return _switch("NCCLKV_SHARE_GPU", usual=False)


def nccl_binding() -> str:
    """Which binding to NCCL was chosen, ``cupy`` or ``nccl4py``; empty when none was."""
    name = os.environ.get("NCCLKV_NCCL_BINDING", "")
    if name not in ("", *NCCL_BINDINGS):
        raise LaunchError(
            f"NCCLKV_NCCL_BINDING={name!r} is no binding to NCCL; set {' or '.join(NCCL_BINDINGS)}"
        )
    return name


def kernel_cache() -> str:
    """Return the directory of compiled CUDA kernels; empty when none are to be kept."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    # Where a user has no home, the name stays as it is.
    usual = "0" if home.startswith("~") else os.path.join(home, "ncclkv", "kernels")
    named = os.environ.get("NCCLKV_KERNEL_CACHE") or usual
    return "" if named == "0" else named


def nccl_blocks() -> bool:
    """Whether NCCL's calls return when they are done, as they do unless told otherwise."""
    return os.environ.get("NCCL_COMM_BLOCKING", "1").strip() != "0"


def for_ranks(settings: Mapping[str, str], unless_set: Mapping[str, str]) -> dict[str, str]:
    """The environment of a job's ranks: this process's, with `settings`, and others if missing."""
    return {**unless_set, **os.environ, **settings}


_CHECKS: dict[str, Callable[[], object] | None] = {
    # An argument wins over it, so that it is refused only where it is read.
    "NCCLKV_TIMEOUT": None,
    "NCCLKV_RANKS_PER_NODE": ranks_per_node,
    "NCCLKV_NODE_MEMORY": node_memory,
    "NCCLKV_COMPILED": partial(_check_pair, "NCCLKV_COMPILED"),
    "NCCLKV_CHECKPOINT": checkpoint,
    "NCCLKV_DUMP": dump,
    "NCCLKV_RESTART": restarts,
    **dict.fromkeys(("NCCLKV_RUN_SECRET", "NCCLKV_RUN_EVENTS")),
    "NCCLKV_ABORT": partial(_check_pair, "NCCLKV_ABORT"),
    "NCCLKV_EXIT_TIMEOUT": exit_timeout,
    "NCCLKV_TRACEBACK": partial(_check_pair, "NCCLKV_TRACEBACK", "user", "full"),
    "NCCLKV_SHARE_GPU": partial(_check_pair, "NCCLKV_SHARE_GPU"),
    "NCCLKV_NCCL_BINDING": nccl_binding,
    "NCCLKV_KERNEL_CACHE": kernel_cache,
    **{name: partial(_whole, name, 0) for pair in _LAUNCHERS for name in pair},
}
"""Every variable, with what raises a `LaunchError` when its value is wrong, if `check` is to."""

# Read by the tests of the package and by launch/on_gpu.sh.
_OF_TESTS = (
    "NCCLKV_REQUIRE_GPU",
    "NCCLKV_TEST_CASES",
    "NCCLKV_TEST_SLOW",
    "NCCLKV_TEST_FAULTS",
    "NCCLKV_EMULATED",
)


def check() -> None:
    """Refuse variables with wrong values: a `LaunchError` with name, value and what is allowed."""
    for each in _CHECKS.values():
        if each is not None:
            each()


def unknown() -> list[str]:
    """Return the names that begin with ``NCCLKV_`` and mean nothing, each with the nearest one."""
    # Without the prefix, which would make any two names alike.
    known = [name[len(_PREFIX) :] for name in _CHECKS if name.startswith(_PREFIX)]
    odd = sorted(name for name in own_variables() if name not in (*_CHECKS, *_OF_TESTS))
    near = {name: difflib.get_close_matches(name[len(_PREFIX) :], known, 1) for name in odd}
    return [
        f"{name} (did you mean {_PREFIX}{near[name][0]}?)" if near[name] else name for name in odd
    ]
