"""Unreached hosts: recognises ssh's reasons, which explain more than mpirun's own lines."""

from __future__ import annotations

import re
import socket
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from ncclkv.cli.outcome import Outcome

# OpenSSH's messages.  Those without a host come from a connection that ends before its login.
_REASON = re.compile(
    r"ssh: Could not resolve hostname (?P<unknown>\S+): "
    r"|ssh: connect to host (?P<closed>\S+) port "
    r"|(?:\S+@)?(?P<refused>\S+): Permission denied \("
    r"|Host key verification failed|kex_exchange_identification: |ssh_exchange_identification: "
    r"|Connection (?:closed|reset|timed out)"
)
_HYDRA = re.compile(r"\[(?:mpiexec|proxy)[:@]")
_MOST_HOSTS = 3

_LAUNCHERS = ("HYDRA_LAUNCHER", "HYDRA_BOOTSTRAP", "I_MPI_HYDRA_BOOTSTRAP")
_PROGRAMS = ("HYDRA_LAUNCHER_EXEC", "HYDRA_BOOTSTRAP_EXEC", "I_MPI_HYDRA_BOOTSTRAP_EXEC")
"""Variables of MPICH and of Intel MPI, for what starts processes on hosts, and its program."""

_BATCH = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "PE_HOSTFILE", "COBALT_JOBID")
"""Variables of batch systems, whose own launchers mpirun uses in place of ssh."""

_MOST_ASKED = 8
_SSH_SECONDS = 10.0
"""Seconds for one ssh, and ssh's own limit for its connection, which is half of them."""


def is_reason(line: str) -> bool:
    """Return whether a line is ssh's reason for a host that it cannot reach.

    Examples
    --------
    >>> is_reason("ssh: connect to host node2 port 22: Connection refused")
    True
    """
    return _REASON.match(line) is not None


def describe(outcome: Outcome) -> list[str]:
    """Return lines about hosts that ssh could not reach, with advice; empty without any."""
    found = [match for line in outcome.launcher_lines if (match := _REASON.match(line))]
    if not found:
        return []
    begun = {rank.place for rank in outcome.ranks.values() if rank.began}
    places = [rank.place for rank in outcome.ranks.values() if rank.place not in ("", *begun)]
    given = {place.lower(): place for place in places}  # ssh writes names in lower case
    named = [name for match in found for name in match.groups() if name]
    names = [given.get(name.lower(), name) for name in named]
    hosts = [*dict.fromkeys(names or places)]
    who = _listed(hosts, " and " if names else " or ") or "a host"
    reasons = "; ".join(dict.fromkeys(match.string.strip() for match in found))
    hydra = any(_HYDRA.match(line) for line in outcome.launcher_lines)
    other = "HYDRA_LAUNCHER=slurm (rsh, pbs ...)" if hydra else "PRTE_MCA_plm_ssh_agent=PROGRAM"
    host = hosts[0] if len(hosts) == 1 else "HOST"
    return [
        f"{who} cannot be reached: {reasons}",
        f"'ssh {host} true' must work without a password here, or set {other}",
    ]


def ask_ssh(outcome: Outcome, environment: Mapping[str, str]) -> list[str]:
    """Run ssh again for hosts without ranks, and wait for it; return its reasons.

    MPICH's mpirun may end before it has read what ssh printed: under load, in one of six starts.

    Parameters
    ----------
    outcome : Outcome
    environment : mapping of str to str
        The variables of the launcher, which may name another program than ssh.

    Returns
    -------
    list of str
        Empty where the launcher's lines have reasons, or where it does not use ssh.
    """
    lines = outcome.launcher_lines
    if not any(map(_HYDRA.match, lines)) or any(map(is_reason, lines)):
        return []
    launcher = (
        _first(environment, _LAUNCHERS) or (_first(environment, _BATCH) and "its own") or "ssh"
    )
    if outcome.interrupted_by or launcher != "ssh":
        return []
    begun = {rank.place for rank in outcome.ranks.values() if rank.began}
    places = dict.fromkeys(rank.place for rank in outcome.not_begun)
    asked = [each for each in places if each and each not in begun and not _is_here(each)]
    program = _first(environment, _PROGRAMS) or "ssh"
    commands = [_ssh(program, place) for place in asked[:_MOST_ASKED]]
    with ThreadPoolExecutor(_MOST_ASKED) as threads:
        said = threads.map(lambda command: _output_of(command, environment), commands)
        return [line for text in said for line in text.splitlines() if is_reason(line)]


def _first(environment: Mapping[str, str], names: Sequence[str]) -> str:
    """Return the value of the first variable that is set; empty without one."""
    return next((environment[name] for name in names if environment.get(name)), "")


def _ssh(program: str, host: str) -> list[str]:
    """Return a command that logs in as mpirun does, but asks for no password."""
    limit = f"-oConnectTimeout={_SSH_SECONDS / 2:g}"
    return [program, "-oBatchMode=yes", limit, "-x", host, "true"]


def _output_of(command: Sequence[str], environment: Mapping[str, str]) -> str:
    """Run a command to its end, and return its stderr; empty if it cannot run, or is too slow."""
    try:
        run = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=_SSH_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return run.stderr.decode(errors="replace")


def _is_here(host: str) -> bool:
    """Return whether a host is this machine, which mpirun reaches without ssh."""
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    except OSError:
        return False
    for family, kind, protocol, _, address in found:
        with socket.socket(family, kind, protocol) as trial:
            try:
                trial.bind(address)
            except OSError:
                continue
            return True
    return False


def _listed(hosts: Sequence[str], between: str) -> str:
    """List hosts, the first of them if they are many."""
    more = len(hosts) - _MOST_HOSTS
    return between.join([*hosts[:_MOST_HOSTS], *([f"{more} more"] if more > 0 else [])])
