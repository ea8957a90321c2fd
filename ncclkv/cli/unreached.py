"""Unreached hosts: recognises ssh's reasons, which explain more than mpirun's own lines."""

from __future__ import annotations

import re
from collections.abc import Sequence

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


def _listed(hosts: Sequence[str], between: str) -> str:
    """List hosts, the first of them if they are many."""
    more = len(hosts) - _MOST_HOSTS
    return between.join([*hosts[:_MOST_HOSTS], *([f"{more} more"] if more > 0 else [])])
