"""How much memory this process can still have, by its machine and by the containers it is in.

A container is a control group of Linux, whose limit ends a process that passes it.  Memory that
only holds what was read from files counts as free: it is dropped when it is needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_NO_LIMIT = 1 << 60
"""Version 1 of control groups writes a number of about this size where there is no limit."""


@dataclass(frozen=True)
class Room:
    """Memory that is left.

    Attributes
    ----------
    nbytes : int
    source : str
        What says so, for messages.
    """

    nbytes: int
    source: str


@dataclass(frozen=True)
class _Files:
    """Where a version of control groups has what, below any of its mounts."""

    mounts: tuple[str, ...]
    limit: str
    used: str
    droppable: tuple[str, ...]


_VERSIONS = {
    "": _Files(
        ("sys/fs/cgroup", "sys/fs/cgroup/unified"),
        "memory.max",
        "memory.current",
        ("inactive_file",),
    ),
    "memory": _Files(
        ("sys/fs/cgroup/memory",),
        "memory.limit_in_bytes",
        "memory.usage_in_bytes",
        # The first counts the groups below as well, as the usage does.
        ("total_inactive_file", "inactive_file"),
    ),
}
"""By the controllers that a line of ``/proc/self/cgroup`` names: none in version 2."""


def room(root: Path = Path("/")) -> Room | None:
    """The least that any limit leaves to this process; None where nobody says.

    Parameters
    ----------
    root : Path
        What the files of the system lie under.
    """
    found = [*_of_machine(root), *_of_groups(root)]
    return min(found, key=lambda each: each.nbytes, default=None)


def _of_machine(root: Path) -> Iterator[Room]:
    """What the machine has, swapping nothing out."""
    for line in _lines(root / "proc/meminfo"):
        name, _, rest = line.partition(":")
        if name == "MemAvailable":
            yield Room(1024 * int(rest.split()[0]), "MemAvailable of /proc/meminfo")


def _of_groups(root: Path) -> Iterator[Room]:
    """What each control group leaves, from this process's up to the outermost that can be seen."""
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


def _of_group(root: Path, group: Path, files: _Files) -> Iterator[Room]:
    """What one group leaves; nothing where it sets no limit."""
    limit = _number(group / files.limit)
    used = _number(group / files.used)
    if limit is None or used is None or limit >= _NO_LIMIT:
        return
    counts = dict(line.split(" ", 1) for line in _lines(group / "memory.stat") if " " in line)
    droppable = next((int(counts[name]) for name in files.droppable if name in counts), 0)
    where = Path("/") / (group / files.limit).relative_to(root)
    yield Room(max(limit - max(used - droppable, 0), 0), f"{where}, a limit of {limit:,} bytes")


def _number(path: Path) -> int | None:
    """The number that a file holds; None when it holds another word, or is not there."""
    text = "".join(_lines(path)).strip()
    return int(text) if text.isdigit() else None


def _lines(path: Path) -> list[str]:
    """A file's lines; none where it cannot be read."""
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
