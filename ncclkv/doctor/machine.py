"""Machine of this process: its open files, its name in the network, and its clock."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from pathlib import Path

from ncclkv.comm.shm.setup import descriptors, free_descriptors
from ncclkv.doctor.probe import ask
from ncclkv.doctor.rows import BLOCKS, WARNS, Row

_RESOLVE = """
import json, socket
for name in {names!r}:
    try:
        found = socket.getaddrinfo(name, None)[0][4][0]
    except OSError:
        continue
    print('{{"ncclkv": ' + json.dumps([name, found]) + '}}', flush=True)
"""
"""Program that resolves names; it imports nothing slow."""

_SECONDS = 5.0

_ENOUGH = 1024
"""Usual limit of open files, which suffices for most jobs."""

_CLOCK = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")
_SLOW_CLOCKS = ("hpet", "acpi_pm", "jiffies")


def rows(ranks_here: int, several_hosts: bool) -> Iterator[Row]:
    """Yield the rows of this host, on which so many ranks of the job run."""
    yield open_files(ranks_here)
    yield names("host name", [socket.gethostname()], needed=several_hosts)
    yield clock()


def open_files(ranks_here: int) -> Row:
    """Return the row of the limit of open files."""
    import resource  # not on every system

    limit, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    free, needed = free_descriptors(), descriptors(ranks_here)
    found = "no limit" if limit == resource.RLIM_INFINITY else f"a limit of {limit:,}"
    used = f"{needed:,} needed by {ranks_here} rank{'s' * (ranks_here > 1)} of a host"
    if ranks_here < 2 or free >= needed:
        return Row("open files", found, used)
    # Ranks have slightly different counts of open files, and equal rows are shown once.
    enough = max(_ENOUGH, 2 * needed)
    why = "too few are free: the ranks of this host copy each array twice"
    mend = f"ulimit -n {enough}" + (f", by root: the hard limit is {most:,}" * (most < enough))
    return Row("open files", found, used, why, mend, WARNS)


def names(thing: str, wanted: Sequence[str], *, needed: bool) -> Row:
    """Return the row of host names that are looked up, in a child: a resolver may take minutes."""
    ended = ask(_RESOLVE.format(names=list(wanted)), _SECONDS)
    missing = [name for name in wanted if name not in ended.told]
    found = ", ".join(f"{name} is {ended.told[name]}" for name in wanted if name not in missing)
    if not missing:
        return Row(thing, found)
    why = f"{', '.join(missing)} has no address"
    why += f": the resolver {ended.problem}" if ended.problem else ""
    if not needed:
        return Row(thing, "not resolved", "not needed on one host", why)
    mend = f"on every host add a line to /etc/hosts: ADDRESS {missing[0]}"
    return Row(thing, found or "not resolved", "", why, mend, BLOCKS)


def clock() -> Row:
    """Return the row of the clock that waits and traces read."""
    try:
        source = _CLOCK.read_text().strip()
    except OSError:
        return Row("clock source", "not known")
    if source not in _SLOW_CLOCKS:
        return Row("clock source", source)
    why = "each look at the clock enters the kernel, and short collectives look often"
    return Row(
        "clock source", source, "", why, "boot with clocksource=tsc, if the machine allows", WARNS
    )
