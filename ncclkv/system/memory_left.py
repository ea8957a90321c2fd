"""Memory that this process can still allocate, by its machine, its control groups and its limits.

Containers are control groups of Linux: a process that passes their limit is killed.  The page
cache of files counts as free, because the kernel drops such pages when memory is needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_NO_LIMIT = 1 << 60
"""Control groups of version 1 give a limit of at least this size where there is no limit."""


class MemoryLeft(NamedTuple):
    """Memory that one limit leaves.

    Attributes
    ----------
    nbytes : int
    source : str
        The limit and its file, for messages.
    """

    nbytes: int
    source: str


class _Files(NamedTuple):
    """Names of the files of one version of control groups, below any of its mounts."""

    mounts: tuple[str, ...]
    limit: str
    used: str
    droppable: tuple[str, ...]


_VERSION_1 = _Files(
    ("sys/fs/cgroup/memory",),
    "memory.limit_in_bytes",
    "memory.usage_in_bytes",
    # "total" counts the groups below as well, as the usage does.
    ("total_inactive_file", "inactive_file"),
)
_VERSION_2 = _Files(
    ("sys/fs/cgroup", "sys/fs/cgroup/unified"), "memory.max", "memory.current", ("inactive_file",)
)
_VERSIONS = {"": _VERSION_2, "memory": _VERSION_1}
"""Files by the controller in a line of ``/proc/self/cgroup``; version 2 names no controller."""


def memory_left(root: Path = Path("/")) -> MemoryLeft | None:
    """Return the least memory that any limit leaves to this process; None without a limit.

    Parameters
    ----------
    root : Path
        Root of the system's files.
    """
    found = [*_of_machine(root), *_of_groups(root)]
    return min(found, key=lambda each: each.nbytes, default=None)


def address_space_left(root: Path = Path("/")) -> MemoryLeft | None:
    """Return the address space that RLIMIT_AS leaves to this process; None without a limit.

    ``ulimit -v`` sets the limit, and so do batch systems.  Memory of other processes that this
    process maps counts, too.

    Parameters
    ----------
    root : Path
        Root of the system's files.
    """
    limits = _fields(root / "proc/self/limits", "Max address space")
    used = _fields(root / "proc/self/status", "VmSize:")
    if not limits or not used or not limits[0].isdigit():
        return None
    limit = int(limits[0])
    return MemoryLeft(
        max(limit - 1024 * int(used[0]), 0), f"RLIMIT_AS (ulimit -v), a limit of {limit:,} bytes"
    )


def _fields(path: Path, name: str) -> list[str]:
    """Return the words after a name at the beginning of a line; none without such a line."""
    lines = (line for line in _lines(path) if line.startswith(name))
    return next((line[len(name) :].split() for line in lines), [])


def _of_machine(root: Path) -> Iterator[MemoryLeft]:
    """Yield the free memory of the machine without swapping."""
    for line in _lines(root / "proc/meminfo"):
        name, _, rest = line.partition(":")
        if name == "MemAvailable":
            yield MemoryLeft(1024 * int(rest.split()[0]), "MemAvailable of /proc/meminfo")


def _of_groups(root: Path) -> Iterator[MemoryLeft]:
    """Yield the memory that each control group leaves, from this process's to the outermost."""
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            files = _VERSIONS.get(controller)
            for mount in files.mounts if files else ():
                top = root / mount
                inner = top / path.lstrip("/")
                for group in (inner, *inner.parents):
                    if files and group.is_relative_to(top):
                        yield from _of_group(root, group, files)


def _of_group(root: Path, group: Path, files: _Files) -> Iterator[MemoryLeft]:
    """Yield the memory that one group leaves; a group without a limit yields nothing."""
    limit = _read_int(group / files.limit)
    used = _read_int(group / files.used)
    if limit is None or used is None or limit >= _NO_LIMIT:
        return
    counts = dict(line.split(" ", 1) for line in _lines(group / "memory.stat") if " " in line)
    droppable = next((int(counts[name]) for name in files.droppable if name in counts), 0)
    where = Path("/") / (group / files.limit).relative_to(root)
    yield MemoryLeft(
        max(limit - max(used - droppable, 0), 0), f"{where}, a limit of {limit:,} bytes"
    )


def _read_int(path: Path) -> int | None:
    """Return the integer in a file; None for other text, or without the file."""
    text = "".join(_lines(path)).strip()
    return int(text) if text.isdigit() else None


def _lines(path: Path) -> list[str]:
    """Return a file's lines; none for a file that cannot be read."""
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
