"""Leftover files of MPI after a failed job: listed while the job runs, then removed.

MPICH's ranks share a file in ``/dev/shm`` of some megabytes, and its launcher writes a file to
``/tmp``.  Both files stay when a rank is killed.  A container's ``/dev/shm`` often has 64 MB: after
many failures the ranks of a start would end by SIGBUS or SIGSEGV.

For 30 seconds the runner looks ten times a second for new files, later every two seconds.  Its list
has the files that its job uses, and those that no process uses.  At the end the runner removes the
listed files that no process has open or mapped.  The next runner does so for lists that are no
longer locked.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from ncclkv import concurrency
from ncclkv.system.processes import stat_of

SHARED = Path("/dev/shm")
TEMPORARY = Path("/tmp")

_SHARED_FILES = "mpich_shm_"
_TEMPORARY_FILES = "hydra_hwloc_xmlfile_"
"""Beginnings of the names of MPICH's files."""

_LISTS = "ncclkv-run-"
"""Prefix of the lists of files, in the temporary directory."""

# New files appear when MPI starts; later searches are less frequent.
_EARLY_SECONDS = 30.0
_EARLY_INTERVAL = 0.1
_LATER_INTERVAL = 2.0

RANK_BYTES = 8 << 20
"""Bytes of ``/dev/shm`` that suffice for a rank."""


class Leftovers:
    """The files of one start of a job.

    Creation removes the files of killed runners.  Each runner lists its files in a list of its own,
    which it keeps locked.  On a full disk no file is listed.

    Parameters
    ----------
    shared, temporary : Path
        Folders in which MPICH's ranks and its launcher create files.
    """

    def __init__(self, shared: Path = SHARED, temporary: Path = TEMPORARY) -> None:
        self._beginnings = (f"{shared}/{_SHARED_FILES}", f"{temporary}/{_TEMPORARY_FILES}")
        self._list: int | None = None
        with suppress(OSError):
            folder = tempfile.gettempdir()
            self._remove_of_ended_runners(Path(folder))
            self._list, self._path = tempfile.mkstemp(prefix=_LISTS, dir=folder)
            fcntl.flock(self._list, fcntl.LOCK_EX)
            os.write(self._list, b"\n")  # marks the list as locked
        self._known = set(self._present())
        self._ours: dict[str, bool] = {}
        self._next = self._start = concurrency.monotonic()

    def update(self, launcher: int) -> None:
        """List new files, at intervals, each with whether the job's ranks use it.

        Parameters
        ----------
        launcher : int
            The process that started the ranks.
        """
        now = concurrency.monotonic()
        if now >= self._next:
            early = now - self._start < _EARLY_SECONDS
            self._next = now + (_EARLY_INTERVAL if early else _LATER_INTERVAL)
            self._update(launcher)

    def _update(self, launcher: int) -> None:
        """List the new files that no other job uses; a full disk is no reason to end a job."""
        for path in self._present():
            if path in self._known or self._ours.get(path):
                continue
            found = {is_descendant(pid, launcher) for pid in users(path)}
            ours = True in found
            if False in found and not ours:
                self._known.add(path)
                self._ours.pop(path, None)
            elif path not in self._ours or ours:
                self._ours[path] = ours
                if self._list is not None:
                    with suppress(OSError):
                        os.write(self._list, f"{int(ours)} {path}\n".encode())

    def remove(self, launcher: int) -> None:
        """Remove the files of the ended job; files still in use stay listed."""
        self._update(launcher)
        left = remove_unused(self._ours)
        if self._list is not None:
            with suppress(OSError):
                if not left:
                    os.unlink(self._path)
            os.close(self._list)

    def _present(self) -> Iterator[str]:
        """Return the files that MPICH has created."""
        # Ended jobs leave thousands of files in /tmp, and pathlib takes 10 us for each.
        for beginning in self._beginnings:
            folder, name = os.path.split(beginning)
            with suppress(OSError):
                for each in os.listdir(folder):
                    if each.startswith(name):
                        yield f"{folder}/{each}"

    def _remove_of_ended_runners(self, folder: Path) -> None:
        """Remove the files in the lists of runners that have ended."""
        for path in folder.glob(f"{_LISTS}*"):
            with suppress(OSError):
                if not _is_own_file(path) or not path.stat().st_size:
                    continue
                with path.open() as file:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    if not remove_unused(self._parse(file.read())):
                        path.unlink()

    def _parse(self, text: str) -> dict[str, bool]:
        """Return the files of a list, each with whether ranks of its job used it."""
        found: dict[str, bool] = {}
        for line in text.splitlines():
            ours, _, path = line.partition(" ")
            if any(Path(path).match(f"{beginning}*") for beginning in self._beginnings):
                found[path] = found.get(path, False) or ours == "1"
        return found


def shortage(ranks: int, shared: Path = SHARED) -> str:
    """Return a warning when ``/dev/shm`` may be too small for MPI; empty otherwise.

    Parameters
    ----------
    ranks : int
        Count of ranks to start, those of other machines included.
    shared : Path
    """
    try:
        whole, _, free = shutil.disk_usage(shared)
    except OSError:
        return ""
    if free >= ranks * RANK_BYTES:
        return ""
    return (
        f"ncclkv run: {shared} has {free >> 20} MiB free of {whole >> 20} MiB; MPI takes up to "
        f"{RANK_BYTES >> 20} MiB a rank there, and without them ranks end by SIGBUS or SIGSEGV. "
        f"Remove files from it, or make it larger (docker run --shm-size=1g)"
    )


def remove_unused(files: Mapping[str, bool]) -> list[str]:
    """Remove files of this user that no process uses; return those that are still in use.

    Parameters
    ----------
    files : mapping of str to bool
        Paths, each with whether ranks of the job used the file.  If any file of a folder was used,
        the other files of that folder are not removed: they may be another job's.
    """
    seen = {os.path.dirname(path) for path, ours in files.items() if ours}
    left = []
    for path, ours in files.items():
        if not ours and os.path.dirname(path) in seen:
            continue
        with suppress(OSError):
            if _is_own_file(Path(path)):
                if users(path):
                    left.append(path)
                else:
                    os.unlink(path)
    return left


def _is_own_file(path: Path) -> bool:
    """Return whether a path is a regular file of this user, and no link."""
    found = path.lstat()
    return found.st_uid == os.getuid() and stat.S_ISREG(found.st_mode)


def users(path: str) -> list[int]:
    """Return the visible processes that have a file open or mapped."""
    pids = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            maps = (folder / "maps").read_text().splitlines()
            if any(line.endswith(f" {path}") for line in maps) or path in _open_files(folder):
                pids.append(int(folder.name))
    return pids


def _open_files(process: Path) -> Iterator[str]:
    """Return the files that a process has open."""
    for each in (process / "fd").iterdir():
        with suppress(OSError):
            yield os.readlink(each)


def is_descendant(pid: int, ancestor: int) -> bool | None:
    """Return whether a process descends from `ancestor`.

    Returns
    -------
    bool or None
        None when a process between them has ended.
    """
    while pid != ancestor:
        if pid <= 1:
            return False
        fields = stat_of(pid)
        if not fields:
            return None
        pid = int(fields[1])
    return True
