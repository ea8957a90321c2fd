"""Leftover files of MPI after a failed job: noted while the job runs, then removed.

MPICH's ranks share a file in ``/dev/shm`` of some megabytes, and its launcher writes a file to
``/tmp``.  Both stay when a rank is killed.  A container's ``/dev/shm`` often has 64 MB: starts
after many failures would end by SIGBUS or SIGSEGV.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from ncclkv.cli.descendants import stat_of

SHARED = Path("/dev/shm")
TEMPORARY = Path("/tmp")

_SHARED_FILES = "mpich_shm_*"
_TEMPORARY_FILES = "hydra_hwloc_xmlfile_*"
_RECORDS = "ncclkv-run-"
_NAMES = "names"

# New files appear when MPI starts; later searches are less frequent.
_EARLY_SECONDS = 30.0
_SOON_SECONDS = 0.1
_SELDOM_SECONDS = 2.0

_EACH_RANK = 8 << 20
"""Bytes of ``/dev/shm`` that suffice for a rank."""


class Leftovers:
    """The files of one start of a job.

    Creation removes the files of killed runners.  Each runner lists its files in a folder of its
    own, which it keeps locked.  On a full disk no file is listed.

    Parameters
    ----------
    shared, temporary : Path
        Folders in which MPICH's ranks and its launcher create files.
    """

    def __init__(self, shared: Path = SHARED, temporary: Path = TEMPORARY) -> None:
        self._places = ((shared, _SHARED_FILES), (temporary, _TEMPORARY_FILES))
        self._folder: Path | None = None
        self._lock: int | None = None
        with suppress(OSError):
            records = Path(tempfile.gettempdir())
            self._sweep_dead(records)
            self._folder = Path(tempfile.mkdtemp(prefix=_RECORDS, dir=records))
            self._lock = os.open(self._folder, os.O_RDONLY)
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            (self._folder / _NAMES).touch()  # marks the folder as locked
        self._known = set(self._present())
        self._ours: dict[str, bool] = {}
        self._next = self._start = time.monotonic()

    def look(self, launcher: int) -> None:
        """Note new files, and whether the job's ranks use them.

        Parameters
        ----------
        launcher : int
            The process that started the ranks.
        """
        now = time.monotonic()
        if now >= self._next:
            early = now - self._start < _EARLY_SECONDS
            self._next = now + (_SOON_SECONDS if early else _SELDOM_SECONDS)
            self._look(launcher)

    def _look(self, launcher: int) -> None:
        for path in self._present():
            if path not in self._known and not self._ours.get(path):
                self._note(path, launcher)

    def _note(self, path: str, launcher: int) -> None:
        """Note a file, unless only processes of other jobs use it."""
        found = {is_descendant(pid, launcher) for pid in users(path)}
        ours = True in found
        if False in found and not ours:
            self._known.add(path)
            self._ours.pop(path, None)
        elif path not in self._ours or ours:
            self._ours[path] = ours
            self._record(f"{int(ours)} {path}\n")

    def _record(self, line: str) -> None:
        """Write a line of the list; a full disk is no reason to end a job."""
        if self._folder is not None:
            with suppress(OSError), (self._folder / _NAMES).open("a") as record:
                record.write(line)

    def sweep(self, launcher: int) -> None:
        """Remove the files of the ended job; files still in use stay listed."""
        self._look(launcher)
        left = remove(self._ours)
        with suppress(OSError):
            if not left and self._folder is not None:
                shutil.rmtree(self._folder)
        if self._lock is not None:
            os.close(self._lock)

    def _present(self) -> Iterator[str]:
        """Return the files that MPICH has created."""
        for folder, pattern in self._places:
            yield from map(str, folder.glob(pattern))

    def _sweep_dead(self, records: Path) -> None:
        """Remove the files of runners that have ended."""
        for folder in records.glob(f"{_RECORDS}*"):
            with suppress(OSError):
                if folder.lstat().st_uid != os.getuid() or not (folder / _NAMES).is_file():
                    continue
                lock = os.open(folder, os.O_RDONLY | os.O_NOFOLLOW)
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    if not remove(self._read(folder / _NAMES)):
                        shutil.rmtree(folder)
                finally:
                    os.close(lock)

    def _read(self, record: Path) -> dict[str, bool]:
        """Return the files of a record, each with whether ranks of its job used it."""
        found: dict[str, bool] = {}
        for line in record.read_text().splitlines():
            ours, _, path = line.partition(" ")
            if any(Path(path).match(str(folder / pattern)) for folder, pattern in self._places):
                found[path] = found.get(path, False) or ours == "1"
        return found


def shortage(ranks: int, shared: Path = SHARED) -> str:
    """Return a warning when ``/dev/shm`` may be too small for MPI; empty otherwise.

    Parameters
    ----------
    ranks : int
        Number of ranks to start, those of other machines included.
    shared : Path
    """
    try:
        room = os.statvfs(shared)
    except OSError:
        return ""
    free, whole = room.f_bavail * room.f_frsize, room.f_blocks * room.f_frsize
    if free >= ranks * _EACH_RANK:
        return ""
    return (
        f"ncclkv run: {shared} has {free >> 20} MiB free of {whole >> 20} MiB; MPI takes up to "
        f"{_EACH_RANK >> 20} MiB a rank there, and without them ranks end by SIGBUS or SIGSEGV. "
        f"Remove files from it, or make it larger (docker run --shm-size=1g)"
    )


def remove(files: Mapping[str, bool]) -> list[str]:
    """Remove files of this user that no process uses; return those that are still in use.

    Parameters
    ----------
    files : mapping of str to bool
        Paths, each with whether ranks of the job used the file.  Files that no rank was seen to use
        are removed only where no file of the same folder was in use.
    """
    seen = {os.path.dirname(path) for path, ours in files.items() if ours}
    left = []
    for path, ours in files.items():
        if not ours and os.path.dirname(path) in seen:
            continue
        with suppress(OSError):
            found = os.lstat(path)
            if found.st_uid != os.getuid() or not stat.S_ISREG(found.st_mode):
                continue
            if users(path):
                left.append(path)
            else:
                os.unlink(path)
    return left


def users(path: str) -> list[int]:
    """Return the visible processes that have a file open or mapped."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            maps = (folder / "maps").read_text().splitlines()
            if any(line.endswith(f" {path}") for line in maps) or path in _open_files(folder):
                found.append(int(folder.name))
    return found


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
