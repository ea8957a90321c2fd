"""Environment variables; only this file reads them.

A wrong value raises a `LaunchError`.  Variables that are read on import take their default instead,
and `check` refuses them when a communicator is created: an error on import, on one rank alone,
would leave the other ranks waiting.

========================  ====================================================================
``NCCLKV_TIMEOUT``        timeout of waits in seconds (300); ``create(timeout=)`` overrides it
``NCCLKV_RANKS_PER_NODE``  most ranks that share memory; further ranks form nodes of their own
``NCCLKV_NODE_MEMORY``    how ranks of a node share memory: ``files``, ``halves`` or ``messages``;
                          by default the first of these that works
``NCCLKV_COMPILED``       ``0``: NumPy instead of C sums, updates and copies host arrays
``NCCLKV_CHECKPOINT``     default directory of ``kv.save`` and ``kv.load``
``NCCLKV_DUMP``           directory in which each rank writes a report when its store breaks;
                          ``ncclkv explain`` reads it
``NCCLKV_RESTART``        number of restarts of the job; set by ``ncclkv run`` for programs
``NCCLKV_RUN_SECRET``     and ``NCCLKV_RUN_EVENTS``: set by ``ncclkv run`` for its own use
``NCCLKV_ABORT``          ``0``: an uncaught exception on one rank does not end the job, nor does a
                          call of MPI, NCCL or CUDA that never returns
``NCCLKV_EXIT_TIMEOUT``   seconds after which a rank that waits for others at its end ends the
                          job; by default it waits on and names the late ranks at every timeout
``NCCLKV_TRACEBACK``      ``full``: tracebacks of the package's errors include its own frames;
                          the default, ``user``, shows the program's frames alone
``NCCLKV_SHARE_GPU``      ``1``: several ranks may use one GPU (sets the NCCL variables for it)
``NCCLKV_KERNEL_CACHE``   directory of compiled CUDA kernels; ``0``: none are kept
launcher's variables      number of ranks, and this process's rank
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
"""Values of ``NCCLKV_NODE_MEMORY``, the fastest first."""

# One row a launcher: its variable for the number of ranks, and for this one.  Slurm comes last,
# because mpirun inside an allocation sees Slurm's variables too; srun alone sets these two.
_LAUNCHERS = (
    ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
    ("MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK"),
    ("PMI_SIZE", "PMI_RANK"),
    ("FLUX_JOB_SIZE", "FLUX_TASK_RANK"),
    ("SLURM_STEP_NUM_TASKS", "SLURM_PROCID"),
)

temporarily = Overlay(os.environ).block
"""Set variables within a block, for a library that reads them from the environment."""

# Set by launchers that give a rank but not the number of ranks.
_RANK_ONLY = ("PMIX_RANK",)


def _text(name: str) -> str:
    """Return a variable's text, empty if it is unset."""
    return os.environ.get(name, "")


def _number(name: str) -> int | None:
    """Return a variable as a whole number; None if it is unset or no number."""
    return values.number(_text(name))


def _whole(name: str, least: int) -> int | None:
    """Return a variable as a whole number of at least `least`; None if it is unset."""
    return values.whole(name, _text(name), least)


def _seconds(name: str, unset: str = "") -> float | None:
    """Return a variable as seconds; None if it is unset."""
    return values.seconds(name, _text(name), unset)


def _check_pair(name: str, one: str = "0", other: str = "1") -> None:
    """Refuse a value other than two, by default the values of a switch."""
    values.check_pair(name, _text(name), one, other)


def _switch(name: str, *, usual: bool) -> bool:
    """Return whether a switch is on; an unset or wrong value gives its default.

    Switches are read on import, where an error on one rank would leave the others waiting.
    """
    return {"0": False, "1": True}.get(os.environ.get(name, ""), usual)


def launched_size() -> int | None:
    """Return the number of ranks that the launcher started; None if no launcher gives it."""
    for size, _ in _LAUNCHERS:
        if (count := _number(size)) is not None:
            return count
    return None


def launched_rank() -> int | None:
    """Return this rank as the launcher numbers it; None if no launcher gives it."""
    for size, rank in _LAUNCHERS:
        if _number(size) is not None:
            return _number(rank)
    return None


def launcher_connection() -> int | None:
    """Return the descriptor of a rank's connection to MPICH's mpirun; None if there is none."""
    return _number("PMI_FD")


def launched_without_size() -> bool:
    """Return whether a launcher started this process without giving the number of ranks."""
    return launched_size() is None and any(name in os.environ for name in _RANK_ONLY)


def timeout(given: Any = None) -> float:
    """Return the seconds that a wait may take: `given`, or by default the environment's."""
    if given is None:
        return _timeout_here()
    number = isinstance(given, Real) and not isinstance(given, bool)
    if not (number and 0 < given <= values.LONGEST):
        raise UsageError(f"timeout={given!r} is not a number of seconds; give one above 0")
    return float(given)


def _timeout_here() -> float:
    """Return ``NCCLKV_TIMEOUT``, or 300 if it is unset."""
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
    """Return the ranks that form one node with `rank`, out of the `ranks` of its machine."""
    ranks = list(ranks)
    # `check` refuses a wrong value, on all ranks.
    most = _number("NCCLKV_RANKS_PER_NODE") or len(ranks)
    first = ranks.index(rank) // most * most
    return ranks[first : first + most]


def node_memory() -> str:
    """Return the sharing method that the ranks of a node try first."""
    name = os.environ.get("NCCLKV_NODE_MEMORY", "") or NODE_MEMORY[0]
    if name not in NODE_MEMORY:
        raise LaunchError(
            f"NCCLKV_NODE_MEMORY={name!r} is no way to share memory; set one of "
            f"{', '.join(NODE_MEMORY)}, or unset it for the first that works"
        )
    return name


def checkpoint() -> str:
    """Return the directory of checkpoints; empty if none is named."""
    return os.environ.get("NCCLKV_CHECKPOINT", "")


def dump() -> str:
    """Return the directory for reports of broken stores; empty if none are to be written."""
    return os.environ.get("NCCLKV_DUMP", "")


def own_variables() -> dict[str, str]:
    """Return the variables of this package that are set."""
    return {name: text for name, text in os.environ.items() if name.startswith(_PREFIX)}


def restarts() -> int:
    """Return the number of earlier starts of this job; 0 if no launcher gives it."""
    return _whole("NCCLKV_RESTART", 0) or 0


def under_runner() -> bool:
    """Return whether ``ncclkv run`` started this process."""
    return "NCCLKV_RESTART" in os.environ


def compiled() -> bool:
    """Return whether the kernels in C may be used if they were built."""
    return _switch("NCCLKV_COMPILED", usual=True)


def abort_on_exception() -> bool:
    """Return whether an uncaught exception on one rank ends the whole job."""
    return _switch("NCCLKV_ABORT", usual=True)


def share_gpu() -> bool:
    """Return whether ranks share GPUs on purpose."""
    return _switch("NCCLKV_SHARE_GPU", usual=False)


def kernel_cache() -> str:
    """Return the directory of compiled CUDA kernels; empty if none are to be kept."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    # Without a home directory expanduser returns the name unchanged.
    usual = "0" if home.startswith("~") else os.path.join(home, "ncclkv", "kernels")
    named = os.environ.get("NCCLKV_KERNEL_CACHE") or usual
    return "" if named == "0" else named


def for_ranks(settings: Mapping[str, str], unless_set: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a job's ranks: this process's, `settings`, and missing defaults."""
    return {**unless_set, **os.environ, **settings}


_CHECKS: dict[str, Callable[[], object] | None] = {
    # ``create(timeout=)`` overrides it, so it is refused only where it is used.
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
    "NCCLKV_KERNEL_CACHE": kernel_cache,
    **{name: partial(_whole, name, 0) for pair in _LAUNCHERS for name in pair},
}
"""Check of each variable's value, which raises a `LaunchError`; None: checked at its use."""

# Read by the tests of the package and by launch/on_gpu.sh.
_OF_TESTS = (
    "NCCLKV_REQUIRE_GPU",
    "NCCLKV_TEST_CASES",
    "NCCLKV_TEST_SLOW",
    "NCCLKV_TEST_FAULTS",
    "NCCLKV_EMULATED",
)


def check() -> None:
    """Raise a `LaunchError` for a variable with a wrong value: name, value and what is allowed."""
    for each in _CHECKS.values():
        if each is not None:
            each()


def unknown() -> list[str]:
    """Return unknown names that begin with ``NCCLKV_``, each with the nearest known one."""
    # The common prefix would make all names similar, so it is left out.
    known = [name[len(_PREFIX) :] for name in _CHECKS if name.startswith(_PREFIX)]
    odd = sorted(name for name in own_variables() if name not in (*_CHECKS, *_OF_TESTS))
    near = {name: difflib.get_close_matches(name[len(_PREFIX) :], known, 1) for name in odd}
    return [
        f"{name} (did you mean {_PREFIX}{near[name][0]}?)" if near[name] else name for name in odd
    ]
