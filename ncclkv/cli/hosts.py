"""Command line by which an mpirun places ranks on hosts."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ncclkv.cli import protocol
from ncclkv.cli.allocation import host_variable
from ncclkv.cli.mpirun_search import Mpirun
from ncclkv.errors import LaunchError

_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)

_HOST_SPECIFIC = re.compile(
    r"(_|HOSTNAME|PWD|OLDPWD|SHLVL|TMPDIR|DISPLAY)$|(SSH|XDG|DBUS|SLURM|PBS|LSB|PMI|PMIX|OMPI|PRTE)_"
)
"""Variables that have a meaning on one host only, or that Open MPI forwards by itself."""

_AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}

# The names of Open MPI 4 and of Open MPI 5.
_OVERSUBSCRIBE = {
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}


@dataclass(frozen=True)
class MpiLauncher:
    """A launcher's command line before the ranks' command, and its environment.

    Attributes
    ----------
    line : list of str
    settings, unless_set : mapping of str to str
        Variables that the launcher needs, and defaults of variables that the user has not set.
    names_variables : bool
        True if ranks on other hosts get only the variables that the line names.
    """

    line: list[str]
    settings: Mapping[str, str] = field(default_factory=dict)
    unless_set: Mapping[str, str] = field(default_factory=dict)
    names_variables: bool = False

    def with_environment(self, environment: Mapping[str, str]) -> list[str]:
        """Return the line for ranks that are to have this environment."""
        names = [protocol.SECRET, *forwarded_variables(environment)] if self.names_variables else []
        return [*self.line, *(word for name in names for word in ("-x", name))]


def launcher(mpirun: Mpirun, ranks: int, slots: Mapping[str, int]) -> MpiLauncher:
    """Return the launcher for `ranks` ranks.

    Without `slots` mpirun finds the hosts in an allocation or in its own variables.  Without both
    it starts all ranks on this machine.

    Raises
    ------
    LaunchError
        When hosts are given to an mpirun whose options for them are not known.
    """
    line = [mpirun.path, "-n", str(ranks)]
    listed = ",".join(f"{name}:{count}" for name, count in slots.items())
    several = bool(slots or host_variable())
    if mpirun.is_open_mpi:
        if slots:
            line += ["--host", listed]
        if several:
            # Ranks that cannot reach the runner print through mpirun.
            line += ["--tag-output"] if "Open MPI) 4" in mpirun.version else ["--output", "tag"]
        oversubscribed = not several and ranks > cores()
        defaults = _OVERSUBSCRIBE if oversubscribed else {}
        return MpiLauncher(line, _AS_ROOT, defaults, several)
    if slots and not mpirun.is_hydra:
        raise LaunchError(
            f"{mpirun.path} is neither MPICH's nor Open MPI's, so how it is given hosts is not "
            f"known; leave out --hosts and --hostfile and set its own variables"
        )
    if mpirun.is_hydra and several:
        line += [*(["-hosts", listed] if slots else []), "-prepend-rank"]
    return MpiLauncher(line)


def forwarded_variables(environment: Mapping[str, str]) -> list[str]:
    """Return the names of the variables to forward to ranks on other hosts, sorted."""
    names = [name for name in environment if _NAME.fullmatch(name)]
    return sorted(name for name in names if not _HOST_SPECIFIC.match(name))


def cores() -> int:
    """Return the count of this process's cores, which is Open MPI's count of slots."""
    cpus = os.sched_getaffinity(0)
    topology = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
    try:
        return len({Path(topology.format(cpu)).read_text() for cpu in cpus})
    except OSError:
        return len(cpus)
