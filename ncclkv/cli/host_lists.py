"""Hosts in the forms that users and batch systems write, and the count of ranks on each."""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path

from ncclkv.errors import LaunchError

Hosts = dict[str, int | None]
"""Names of hosts in order, each with its count of ranks, or None."""

_NAME = re.compile(r"([\w.-]+@)?\w[\w.-]*")

# Slurm's short form of several hosts, which stands in SLURM_JOB_NODELIST.
_SHORT_FORM = re.compile(r"[\w.-]+\[[\w.,\[\]-]*")

_SLOTS = "slots"
_MOST_SLOTS = ("max_slots", "max-slots")
"""Words of Open MPI: the second bounds ranks beyond the slots, and none are placed there."""

_FORMS = "give NAME or NAME:RANKS"


def parse(text: str) -> Hosts:
    """Read hosts from a list such as ``"node1:4,node2:4"``; repeated hosts add up.

    Raises
    ------
    LaunchError
        When an entry is neither ``NAME`` nor ``NAME:RANKS``.

    Examples
    --------
    >>> parse("node1,node1,node2:4")
    {'node1': 2, 'node2': 4}
    """
    hosts: Hosts = {}
    if os.path.isfile(text):  # Path.is_file raises for a text that is longer than a name may be
        raise LaunchError(f"--hosts {text} is a file; give --hostfile {text}")
    where = f"--hosts {text}"
    _refuse_short_form(text, where)
    for entry in text.split(","):
        _add(hosts, entry.strip(), where)
    return hosts


def read(path: Path, given_by: str = "--hostfile") -> Hosts:
    """Read hosts from a file; repeated hosts add up.

    Lines are ``NAME``, ``NAME:RANKS`` or ``NAME slots=RANKS``, also with ``max_slots=``.

    Raises
    ------
    LaunchError
        When the file cannot be read, has another kind of line, or names no host.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise LaunchError(f"{given_by} {path} cannot be read: {error}") from error
    hosts: Hosts = {}
    for index, line in enumerate(lines, 1):
        entry = line.partition("#")[0].strip()
        if entry:
            where = f"line {index} of {path}"
            _refuse_short_form(entry, where)
            _add(hosts, _without_words(entry, where), where)
    if not hosts:
        raise LaunchError(f"{given_by} {path} names no host; give a line NAME slots=RANKS for each")
    return hosts


def place_ranks(hosts: Hosts, ranks: int | None) -> tuple[int, dict[str, int]]:
    """Return the count of ranks of a job, and the maximum count of ranks on each host.

    Hosts without a count share the ranks evenly if no host has a count; else each takes 1 rank.

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


def _add(hosts: Hosts, entry: str, where: str) -> None:
    """Add a host's ranks to those of earlier entries; an entry without a count repeats by 1."""
    name, count = _split(entry)
    if not name or (count is not None and not (count.isdecimal() and int(count) > 0)):
        raise LaunchError(f"{where} has {entry!r}, which is no host; {_FORMS}")
    if name not in hosts:
        hosts[name] = int(count) if count else None
    else:
        hosts[name] = (hosts[name] or 1) + int(count or 1)


def _split(entry: str) -> tuple[str, str | None]:
    """Return an entry's name, empty if there is none, and the text of its count of ranks."""
    if entry.startswith("["):
        address, end, rest = entry[1:].partition("]")
        right = end and _is_address(address) and (not rest or rest[0] == ":")
        return _name_of(address) if right else "", rest[1:] if rest else None
    if _is_address(entry):
        return _name_of(entry), None
    name, colon, count = entry.partition(":")
    return name if _NAME.fullmatch(name) else "", count if colon else None


def _is_address(text: str) -> bool:
    """Return whether a text is an IPv6 address."""
    try:
        return bool(socket.inet_pton(socket.AF_INET6, text))
    except OSError:
        return False


def _name_of(address: str) -> str:
    """Return the name of an IPv6 address, because each mpirun takes a colon for a name's end."""
    try:
        return socket.gethostbyaddr(address)[0]
    except OSError as error:
        raise LaunchError(
            f"no mpirun takes the IPv6 address {address} in a list of hosts, and it has no name "
            f"({error}); add a line to /etc/hosts: {address} NAME"
        ) from error


def _without_words(entry: str, where: str) -> str:
    """Return a hostfile's line as ``NAME`` or ``NAME:RANKS``."""
    name, *words = re.sub(r"\s*=\s*", "=", entry).split()
    ranks = ""
    for word in words:
        key, equals, value = word.partition("=")
        if key == _SLOTS and equals and not ranks:
            ranks = f":{value}"
        elif not equals and value == "" and key.isdecimal():
            raise LaunchError(f"{where} has {entry!r}, which is no host; give {name}:{key}")
        elif key not in _MOST_SLOTS:
            raise LaunchError(
                f"{where} has {word!r}, which ncclkv run does not pass on to mpirun; leave it out "
                f"(a user or a port belongs to ~/.ssh/config), and {_FORMS}"
            )
    return name + ranks


def _refuse_short_form(text: str, where: str) -> None:
    """Refuse Slurm's short form of several hosts."""
    if (found := _SHORT_FORM.search(text)) is not None:
        short = found[0].rstrip(",")
        raise LaunchError(
            f"{where} has {short!r}, Slurm's short form of several hosts; give the names that "
            f"this command prints: scontrol show hostnames '{short}' (inside the allocation leave "
            f"out the hosts: Slurm gives them to mpirun)"
        )
