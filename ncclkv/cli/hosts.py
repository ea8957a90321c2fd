"""Hosts of a job, and the command line by which an mpirun places ranks on them."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ncclkv import env
from ncclkv.cli import wire
from ncclkv.cli.mpi import Mpirun
from ncclkv.errors import LaunchError

Hosts = dict[str, int | None]
"""Names of hosts in order, each with its number of ranks, or None."""

_HOST_VARIABLES = (
    *("SLURM_JOB_ID", "PBS_NODEFILE", "PBS_JOBID", "LSB_DJOB_HOSTFILE", "LSB_HOSTS"),
    *("PE_HOSTFILE", "COBALT_NODEFILE", "FLUX_JOB_ID"),
    *("HYDRA_HOST_FILE", "I_MPI_HYDRA_HOST_FILE"),
    *("PRTE_MCA_prte_default_hostfile", "OMPI_MCA_orte_default_hostfile"),
)
"""Variables by which a batch system or the user gives mpirun hosts."""

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
        names = [wire.SECRET, *forwarded_variables(environment)] if self.names_variables else []
        return [*self.line, *(word for name in names for word in ("-x", name))]


def parse(text: str) -> Hosts:
    """Read hosts from a list such as ``"node1:4,node2:4"``.

    Raises
    ------
    LaunchError
        When an entry is neither ``NAME`` nor ``NAME:RANKS``.
    """
    hosts: Hosts = {}
    for entry in text.split(","):
        _add(hosts, entry.strip(), f"--hosts {text}")
    return hosts


def read(path: Path) -> Hosts:
    """Read hosts from a file whose lines are ``NAME``, ``NAME:RANKS`` or ``NAME slots=RANKS``.

    Raises
    ------
    LaunchError
        When the file cannot be read, has another kind of line, or names no host.
    """
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise LaunchError(f"--hostfile {path} cannot be read: {error}") from error
    hosts: Hosts = {}
    for number, line in enumerate(lines, 1):
        entry = line.partition("#")[0].strip()
        if entry:
            words = entry.replace(" = ", "=").split()
            if len(words) == 2 and words[1].startswith("slots="):
                entry = f"{words[0]}:{words[1][6:]}"
            _add(hosts, entry, f"line {number} of {path}")
    if not hosts:
        raise LaunchError(f"--hostfile {path} names no host; give a line NAME slots=RANKS for each")
    return hosts


def _add(hosts: Hosts, entry: str, where: str) -> None:
    """Add a host; several entries of the same host add up."""
    name, colon, count = entry.partition(":")
    right = name and not name.startswith("-") and len(entry.split()) == 1
    if not right or (colon and not (count.isdecimal() and int(count) > 0)):
        raise LaunchError(f"{where} has {entry!r}, which is no host; give NAME or NAME:RANKS")
    before = hosts.get(name)
    hosts[name] = (before or 0) + int(count) if colon else before


def place_ranks(hosts: Hosts, ranks: int | None) -> tuple[int, dict[str, int]]:
    """Return the number of ranks of a job, and the maximum number of ranks on each host.

    Hosts without a number share the ranks evenly if no host has a number; else each takes 1 rank.

    Parameters
    ----------
    hosts : dict
    ranks : int or None
        None for as many as the hosts take.

    Raises
    ------
    LaunchError
        When the hosts take fewer ranks.
    """
    even = 1
    if ranks is not None and all(count is None for count in hosts.values()):
        even = -(-ranks // len(hosts))
    slots = {name: count or even for name, count in hosts.items()}
    capacity = sum(slots.values())
    if ranks is not None and ranks > capacity:
        raise LaunchError(
            f"-n {ranks} is more than the hosts take, {capacity} ranks; give a smaller -n, or "
            f"higher numbers behind the hosts' names"
        )
    return ranks or capacity, slots


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


def host_variable() -> str:
    """Return the name of the variable by which mpirun finds hosts; empty without one."""
    environment = env.for_ranks({}, {})
    return next((name for name in _HOST_VARIABLES if environment.get(name)), "")


def forwarded_variables(environment: Mapping[str, str]) -> list[str]:
    """Return the names of the variables to forward to ranks on other hosts, sorted."""
    names = [name for name in environment if _NAME.fullmatch(name)]
    return sorted(name for name in names if not _HOST_SPECIFIC.match(name))


def cores() -> int:
    """Return the number of this process's cores, which is Open MPI's number of slots."""
    cpus = os.sched_getaffinity(0)
    topology = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
    try:
        return len({Path(topology.format(cpu)).read_text() for cpu in cpus})
    except OSError:
        return len(cpus)
