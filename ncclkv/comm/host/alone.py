"""Alone: refuses to be a job of one rank where a launcher has started several processes.

Such processes would train one model each, without an error.

``create`` compares MPI's count of ranks with the launchers' variables (`ncclkv.launchers`).
Before MPI's start the library is compared with the launcher's protocol, because MPICH ends a
process that Open MPI's mpirun has started.  Rank 0 alone prints such an error.
"""

from __future__ import annotations

import re

from ncclkv import env, launchers
from ncclkv.errors import LaunchError

_OPEN_MPI = re.compile(r"Open MPI v(\d+)")

_PMIX_ALONE = 5
"""Version of Open MPI that no longer knows the protocol PMI."""


def check_library(text: str) -> None:
    """Refuse the MPI library of this version text if it cannot join the launcher; before MPI_Init.

    MPICH ends the process in MPI_Init, and Open MPI makes each process a job of its own.

    Raises
    ------
    LaunchError
    """
    if _cannot_join(text, env.launched_protocol()):
        raise _wrong_library(library_name(text))


def check_size(size: int, text: str) -> None:
    """Refuse a job of fewer ranks than a launcher has started processes.

    Parameters
    ----------
    size : int
        The count of ranks; 1 without MPI.
    text : str
        The version text of the MPI library; empty if MPI was not started.

    Raises
    ------
    LaunchError
        Not with ``NCCLKV_ALONE=1``.
    """
    if env.alone():
        return
    started, other = env.launched(), env.launched_otherwise()
    ranks = 1 if started is None else started.size
    # The usual program of torch under srun sets torch's variables to Slurm's values.
    if size == 1 and other is not None and (other.is_server or other.size != ranks):
        raise LaunchError(_not_ours(other))
    if ranks > size or (size == 1 and started is None and env.other_rank()):
        raise _wrong_library(library_name(text))


def library_name(text: str) -> str:
    r"""Return the name and the version in the version text of an MPI library.

    Examples
    --------
    >>> library_name("MPICH Version:      5.0.2\nMPICH Release date: ...")
    'MPICH 5.0.2'
    """
    first = text.strip("\0").split("\n")[0].split(",")[0]
    return " ".join(first.replace("Version:", " ").split())


def _cannot_join(text: str, protocol: str) -> bool:
    """Return whether a library surely lacks the launcher's protocol."""
    if protocol == launchers.PMIX:
        mpich = text.startswith(("MPICH Version", "MVAPICH"))
        return mpich and "pmix" not in text.lower()  # the text has the options of its build
    found = _OPEN_MPI.match(text)
    return protocol == launchers.PMI and found is not None and int(found[1]) >= _PMIX_ALONE


def _wrong_library(library: str) -> LaunchError:
    """Return the error for processes whose MPI library does not join their launcher."""
    started = env.launched()
    size = None if started is None else started.size
    who = "a launcher of MPI" if started is None else started.launcher.name
    said = env.other_rank() if started is None else f"{started.launcher.size}={size}"
    line = launchers.line_to_type(size)
    if who == launchers.SRUN:
        plugin = "pmix" if library.startswith("Open MPI") else "pmi2"
        line = f"srun --mpi={plugin} -n {size} {launchers.this_program()}"
    error = LaunchError(
        f"{who} started this process{f' ({said})' * bool(said)}, but {library}, which mpi4py "
        f"loads, does not join its ranks; type: {line}"
    )
    error.on_every_rank = True
    return error


def _not_ours(started: launchers.Started) -> str:
    """Return the text of the error for a process of a launcher that MPI does not know."""
    launcher, line = started.launcher, launchers.line_to_type(started.size, started.hosts)
    if started.is_server:
        return (
            f"{launcher.rank}={started.role} says that {launcher.name} started this process as a "
            f"{started.role}; ncclkv has no servers and no scheduler; type: {line}"
        )
    once = "on one host, type" if started.hosts else "type"
    return (
        f"{launcher.size}={started.size} says that {launcher.name} started this process, which "
        f"ncclkv cannot join; {once}: {line}; or set NCCLKV_ALONE=1 for one store a process"
    )
