"""Environment variables; only this file reads them.

A wrong value raises a `LaunchError`.  A wrong value of a variable that is read on import gives the
default, and `check` refuses it when a communicator is created.  An error on import, on one rank,
would leave the other ranks waiting.

========================  ====================================================================
``NCCLKV_TIMEOUT``        timeout of waits in seconds (300); ``create(timeout=)`` overrides it
``NCCLKV_RANKS_PER_NODE``  limit of ranks that share memory; further ranks form other nodes
``NCCLKV_NODE_MEMORY``    how ranks of a node share memory: ``files``, ``halves`` or ``messages``;
                          by default the first of these methods that works
``NCCLKV_COMPILED``       ``0``: sums, updates and copies in host memory use NumPy, not C
``NCCLKV_CHECKPOINT``     default directory of ``kv.save`` and ``kv.load``
``NCCLKV_DUMP``           directory in which each rank writes a report when its store breaks;
                          ``ncclkv explain`` reads it
``NCCLKV_TRACE``          directory in which each rank writes a trace of its stores, from their
                          creation on; ``ncclkv trace`` merges the files
``NCCLKV_LOG_LEVEL``      ``DEBUG``, ``INFO``, ``WARNING``, ``ERROR`` or ``CRITICAL``: level of the
                          logger ``ncclkv``, which then writes to stderr, with the rank, unless the
                          program has handlers of its own
``NCCLKV_METRICS``        file to which rank 0 appends its metrics every ten seconds and at the end,
                          as JSON lines; other ranks and stores add a suffix to the name
``NCCLKV_RESTART``        count of restarts of the job; set by ``ncclkv run`` for programs
``NCCLKV_RUN_SECRET``     set by ``ncclkv run`` for its own use
``NCCLKV_RUN_EVENTS``     set by ``ncclkv run`` for its own use
``NCCLKV_ALONE``          ``1``: a process may be alone though a launcher started several: stores
                          of all ranks are stores of this process, unless MPI has several ranks and
                          this process is one of them
``NCCLKV_ABORT``          ``0``: an uncaught exception on one rank does not end the job, nor does a
                          call of MPI, NCCL or CUDA that never returns
``NCCLKV_EXIT_TIMEOUT``   seconds after which a rank that waits for others at its end ends the
                          job; by default it waits on and names the late ranks at every timeout
``NCCLKV_TRACEBACK``      ``full``: tracebacks of the package's errors include its own frames;
                          the default, ``user``, shows the program's frames alone
``NCCLKV_SHARE_GPU``      ``1``: several ranks may use one GPU, for trials (sets the NCCL variables
                          for it, in each process, since NCCL reads most of them once)
``NCCLKV_KERNEL_CACHE``   directory of compiled CUDA kernels; ``0``: none are kept
``MXNET_UPDATE_ON_KVSTORE``  ``0``: by default a `Trainer` updates on each rank, not on the store;
                          a whole number, as MXNet reads it
launchers' variables      count of processes, and index of this one; tables in `launchers`
========================  ====================================================================
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from numbers import Real
from typing import Any

from ncclkv import concurrency, launchers
from ncclkv.errors import LaunchError, UsageError

DEFAULT_TIMEOUT = 300.0

LONGEST = 3e9
"""Longest wait in seconds, about a century: more does not fit the clock."""

_PREFIX = "NCCLKV_"

NODE_MEMORY = ("files", "halves", "messages")
"""Values of ``NCCLKV_NODE_MEMORY``, the fastest first."""

_LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
"""Values of ``NCCLKV_LOG_LEVEL``, in capitals or not."""

_SWITCHES = ("NCCLKV_COMPILED", "NCCLKV_ABORT", "NCCLKV_ALONE", "NCCLKV_SHARE_GPU")
_TEXTS = (
    "NCCLKV_CHECKPOINT",
    "NCCLKV_DUMP",
    "NCCLKV_KERNEL_CACHE",
    "NCCLKV_RUN_SECRET",
    "NCCLKV_RUN_EVENTS",
    "NCCLKV_TRACE",
    "NCCLKV_METRICS",
)


def _text(name: str) -> str:
    """Return a variable's text, empty if it is unset."""
    return os.environ.get(name, "")


def communicators_block() -> bool | None:
    """Return whether NCCL's communicators block, as ``NCCL_COMM_BLOCKING`` says; None if unset."""
    return {"0": False, "1": True}.get(_text("NCCL_COMM_BLOCKING"))


def _int(name: str) -> int | None:
    """Return a variable as a whole number; None if it is unset or no such number."""
    return launchers.as_int(_text(name))


def _count(name: str, minimum: int = 0) -> int | None:
    """Return a variable as a whole number of at least `minimum`; None if it is unset."""
    text, found = _text(name), _int(name)
    if text and (found is None or found < minimum):
        raise LaunchError(
            f"{name}={text!r} is not a whole number of at least {minimum}; set one, or unset it"
        )
    return found


def _seconds(name: str, unset: str = "") -> float | None:
    """Return a variable as seconds; None if it is unset.  `unset` ends the error's advice."""
    text = _text(name)
    if not text:
        return None
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0 < found <= LONGEST:
        raise LaunchError(
            f"{name}={text!r} is not a number of seconds; set one above 0, or unset it{unset}"
        )
    return found


def _one_of(name: str, *allowed: str, unset: str = "") -> str:
    """Return a variable that has one of the allowed values, by default the first."""
    text = _text(name) or allowed[0]
    if text not in allowed:
        raise LaunchError(
            f"{name}={text!r} is not an allowed value; set one of {', '.join(allowed)}, or unset "
            f"it{unset}"
        )
    return text


def launched() -> launchers.Started | None:
    """Return the launcher of MPI that started this process; None without one, or its size."""
    return next(launchers.started_by(launchers.OF_MPI, os.environ), None)


def launched_otherwise() -> launchers.Started | None:
    """Return the launcher that started several processes of which MPI does not know, or None."""
    rows = [each for each in launchers.OTHERS if _text(each.rank)]
    found = launchers.started_by(rows, os.environ)
    return next((started for started in found if started.several), None)


def launched_protocol() -> str:
    """Return the protocol by which the launcher awaits ranks; empty if it is not known."""
    return launchers.protocol(os.environ)


def launched_size() -> int | None:
    """Return the count of ranks that the launcher started; None without such a launcher."""
    started = launched()
    return None if started is None else started.size


def launched_rank() -> int | None:
    """Return this rank as the launcher numbers it; None without such a launcher."""
    started = launched()
    return None if started is None else started.rank


def several_of_rank_0() -> int:
    """Return the count of ranks if a launcher started several and this is rank 0; else 0."""
    started = launched()
    return started.size if started is not None and started.size > 1 and not started.rank else 0


def alone() -> bool:
    """Return whether the user wants stores of one process, though a launcher started several."""
    return _text("NCCLKV_ALONE") == "1"


def launched_by_mpich() -> bool:
    """Return whether MPICH's mpirun started this process."""
    started = launched()
    return started is not None and started.launcher.name == launchers.MPICHS


def launcher_connection() -> int | None:
    """Return the descriptor of a rank's connection to MPICH's mpirun; None if there is none."""
    return _int("PMI_FD")


def launched_without_size() -> bool:
    """Return whether a launcher started this process without giving the count of ranks."""
    return launched_size() is None and any(name in os.environ for name in launchers.RANK_ONLY)


def other_rank() -> str:
    """Return the variable by which a launcher calls this process a later rank, with its value."""
    later = (name for name in launchers.RANK_ONLY if _int(name))
    return next((f"{name}={_text(name)}" for name in later), "")


def timeout(given: Any = None) -> float:
    """Return the seconds that a wait may take: `given`, or by default the environment's."""
    if given is None:
        usual = DEFAULT_TIMEOUT
        return _seconds("NCCLKV_TIMEOUT", f" for the default of {usual:g}") or usual
    is_number = isinstance(given, Real) and not isinstance(given, bool)
    if not (is_number and 0 < given <= LONGEST):
        raise UsageError(f"timeout={given!r} is not a number of seconds; give one above 0")
    return float(given)


def exit_timeout() -> float | None:
    """Return the seconds after which a wait at the end of a rank ends the job; None for never."""
    return _seconds("NCCLKV_EXIT_TIMEOUT")


def full_traceback() -> bool:
    """Return whether tracebacks show the package's own frames."""
    return _text("NCCLKV_TRACEBACK") == "full"


# A row for Open MPI, for MVAPICH, and for MPICH and Intel MPI.
_LOCAL = (
    ("OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("MV2_COMM_WORLD_LOCAL_SIZE", "MV2_COMM_WORLD_LOCAL_RANK"),
    ("MPI_LOCALNRANKS", "MPI_LOCALRANKID"),
)


def local_place() -> tuple[int | None, int | None]:
    """Return the count of ranks on this host, and this rank's index there; None where unknown."""
    found = ((_int(size), _int(rank)) for size, rank in _LOCAL)
    return next((each for each in found if None not in each), (None, None))


def ranks_per_node() -> int | None:
    """Return the limit on the ranks that share memory, or None."""
    return _count("NCCLKV_RANKS_PER_NODE", 1)


def split_node(ranks: Sequence[int], rank: int) -> list[int]:
    """Return the ranks that form one node with `rank`, out of the `ranks` of its machine."""
    ranks = list(ranks)
    # `check` refuses a wrong value, on all ranks.
    limit = _int("NCCLKV_RANKS_PER_NODE") or len(ranks)
    first = ranks.index(rank) // limit * limit
    return ranks[first : first + limit]


def node_memory() -> str:
    """Return the sharing method that the ranks of a node try first."""
    return _one_of("NCCLKV_NODE_MEMORY", *NODE_MEMORY, unset=" for the first that works")


def checkpoint() -> str:
    """Return the directory of checkpoints; empty if the variable is unset."""
    return _text("NCCLKV_CHECKPOINT")


def dump() -> str:
    """Return the directory for reports of broken stores; empty if the variable is unset."""
    return _text("NCCLKV_DUMP")


def trace() -> str:
    """Return the directory for traces; empty if the variable is unset."""
    return _text("NCCLKV_TRACE")


def log_level() -> str:
    """Return the level of the log in capitals; empty if it is unset or wrong."""
    level = _text("NCCLKV_LOG_LEVEL").upper()
    return level if level in _LOG_LEVELS else ""


def _check_log_level() -> None:
    """Refuse a wrong level."""
    if _text("NCCLKV_LOG_LEVEL") and not log_level():
        _one_of("NCCLKV_LOG_LEVEL", *_LOG_LEVELS)


def metrics() -> str:
    """Return the file for metrics; empty if the variable is unset."""
    return _text("NCCLKV_METRICS")


def own_variables() -> dict[str, str]:
    """Return the variables of this package that are set."""
    # Names are filtered before texts are read: reading a variable takes longer than its name.
    return {name: os.environ[name] for name in os.environ if name.startswith(_PREFIX)}


def restarts() -> int:
    """Return the count of earlier starts of this job; 0 outside ``ncclkv run``."""
    return _count("NCCLKV_RESTART") or 0


def under_runner() -> bool:
    """Return whether ``ncclkv run`` started this process."""
    return "NCCLKV_RESTART" in os.environ


def compiled() -> bool:
    """Return whether the kernels in C may be used if they were built."""
    return _text("NCCLKV_COMPILED") != "0"


def abort_on_exception() -> bool:
    """Return whether an uncaught exception on one rank ends the whole job."""
    return _text("NCCLKV_ABORT") != "0"


def update_on_kvstore() -> bool:
    """Return whether a trainer's optimizer runs on a store that can run it, by default True."""
    return _count("MXNET_UPDATE_ON_KVSTORE") != 0


def share_gpu() -> bool:
    """Return whether ranks share GPUs on purpose."""
    return _text("NCCLKV_SHARE_GPU") == "1"


def kernel_cache() -> str:
    """Return the directory of compiled CUDA kernels; empty if kernels are not cached."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    # Without a home directory expanduser returns the name unchanged.
    usual = "0" if home.startswith("~") else os.path.join(home, "ncclkv", "kernels")
    named = _text("NCCLKV_KERNEL_CACHE") or usual
    return "" if named == "0" else named


def run_events() -> str:
    """Return the pipe of events to ``ncclkv run``; empty if the variable is unset."""
    return _text("NCCLKV_RUN_EVENTS")


def for_ranks(settings: Mapping[str, str], unless_set: Mapping[str, str]) -> dict[str, str]:
    """Return this process's environment, with `settings`, and `unless_set` for unset variables.

    ``ncclkv run`` gives the result to its ranks.  Other callers pass empty mappings, to read this
    process's environment.
    """
    return {**unless_set, **os.environ, **settings}


_blocks: Counter[str] = Counter()
"""Count of blocks that have set each variable."""

_setting = concurrency.Lock()


@contextmanager
def temporarily(settings: Mapping[str, str]) -> Iterator[None]:
    """Set variables within a block, for a library that reads them from the environment.

    Variables that exist already keep their values.  Blocks of several threads may overlap: the last
    block that set a variable removes it.
    """
    with _setting:
        added = {
            name: text for name, text in settings.items() if _blocks[name] or name not in os.environ
        }
        _blocks.update(added.keys())
        os.environ.update(added)
    try:
        yield
    finally:
        with _setting:
            _blocks.subtract(added.keys())
            for name in added:
                if not _blocks[name]:
                    os.environ.pop(name, None)


_CHECKS: dict[str, Callable[[], object]] = {
    "NCCLKV_TIMEOUT": str,  # ``create(timeout=)`` overrides it: it is refused where it is used
    "NCCLKV_RANKS_PER_NODE": ranks_per_node,
    "NCCLKV_NODE_MEMORY": node_memory,
    "NCCLKV_TRACEBACK": partial(_one_of, "NCCLKV_TRACEBACK", "user", "full"),
    "NCCLKV_EXIT_TIMEOUT": exit_timeout,
    "NCCLKV_LOG_LEVEL": _check_log_level,
    "NCCLKV_RESTART": restarts,
    "MXNET_UPDATE_ON_KVSTORE": update_on_kvstore,
    **{name: partial(_one_of, name, "0", "1") for name in _SWITCHES},
    **{name: partial(_count, name) for each in launchers.OF_MPI for name in each[1:3]},
    **dict.fromkeys(_TEXTS, str),
}
"""Check of each variable's value, which raises a `LaunchError`; ``str`` accepts every value."""

# Read by the tests of the package and by launch/on_gpu.sh.
_OF_TESTS = (
    "NCCLKV_REQUIRE_GPU",
    "NCCLKV_TEST_CASES",
    "NCCLKV_TEST_SLOW",
    "NCCLKV_TEST_FAULTS",
    "NCCLKV_TEST_PAUSES",
    "NCCLKV_EMULATED",
)


def check() -> None:
    """Raise a `LaunchError` for a variable with a wrong value: name, value, allowed values."""
    for check_value in _CHECKS.values():
        check_value()


def wrong() -> dict[str, str]:
    """Return the error's text for each variable with a wrong value."""
    texts = {}
    for name, check_value in {**_CHECKS, "NCCLKV_TIMEOUT": timeout}.items():
        try:
            check_value()
        except LaunchError as error:
            texts[name] = str(error)
    return texts


def unknown() -> list[str]:
    """Return unknown names that begin with ``NCCLKV_``, each with the nearest known one."""
    import difflib  # slow to import, and seldom needed

    # The common prefix would make all names similar, so it is left out.
    known = [name[len(_PREFIX) :] for name in _CHECKS if name.startswith(_PREFIX)]
    names = []
    for name in sorted(own_variables().keys() - {*_CHECKS, *_OF_TESTS}):
        close = difflib.get_close_matches(name[len(_PREFIX) :], known, 1)
        names.append(f"{name} (did you mean {_PREFIX}{close[0]}?)" if close else name)
    return names
