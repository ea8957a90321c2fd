"""Directory of checkpoints: names, order, removal and the lock.

A generation is a directory ``step-000000120-save-000003``: the third save into this directory, of
step 120.  Saves have indices because a run may return to an earlier step.  A generation of an
optimizer alone, without values, ends in ``-states``.  A generation gets its name by a rename once
all its bytes are on the disk, and loses its name before any file is removed.  So every directory
with such a name is complete.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import re
import shutil
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from ncclkv.errors import CheckpointError

_log = logging.getLogger("ncclkv")

MANIFEST = "checkpoint.json"
SUMS = "checkpoint.sha256"

_NAME = re.compile(r"step-([0-9]{9,})-save-([0-9]{6,})(-states)?")
_LEFTOVER = re.compile(rf"\.(saving|removing)-{_NAME.pattern}")


class Generation(NamedTuple):
    """A checkpoint in a directory; `values` is False for an optimizer's states alone."""

    save: int
    step: int
    values: bool
    path: str


def generations(directory: str) -> list[Generation]:
    """Return the checkpoints in a directory, newest first."""
    found = []
    for name in os.listdir(directory):
        match = _NAME.fullmatch(name)
        if match:
            path = os.path.join(directory, name)
            found.append(Generation(int(match[2]), int(match[1]), not match[3], path))
    return sorted(found, reverse=True)


def next_name(found: Sequence[Generation], step: int, *, values: bool) -> str:
    """Return the name of a new checkpoint in the directory of `found`."""
    save = found[0].save + 1 if found else 1
    return f"step-{step:09}-save-{save:06}{'' if values else '-states'}"


def named_step(path: str) -> int | None:
    """Return the step in a checkpoint's name; None for another name."""
    match = _NAME.fullmatch(os.path.basename(path))
    return int(match[1]) if match else None


def remove(directory: str, old: Sequence[Generation]) -> None:
    """Remove checkpoints; each is renamed first, so that no name stands for a partial one.

    Failures are logged, not raised: the newer checkpoints are complete.
    """
    for generation in old:
        hidden = os.path.join(directory, f".removing-{os.path.basename(generation.path)}")
        with _logged(generation.path):
            os.rename(generation.path, hidden)
            _delete(hidden)


def remove_leftovers(directory: str) -> None:
    """Remove files of a killed save; failures are logged."""
    for name in os.listdir(directory):
        if _LEFTOVER.fullmatch(name):
            path = os.path.join(directory, name)
            with _logged(path):
                _delete(path)


def _delete(path: str) -> None:
    """Remove a directory with its contents; unlink a link or any other file."""
    if stat.S_ISDIR(os.lstat(path).st_mode):
        shutil.rmtree(path)
    else:
        os.unlink(path)


@contextmanager
def _logged(path: str) -> Iterator[None]:
    """Log a failure to remove a file that is no longer needed."""
    try:
        yield
    except OSError as error:
        _log.warning(
            "%s is no longer needed and cannot be removed (%s); remove it by hand",
            path,
            reason(error),
        )


def reason(error: BaseException) -> str:
    """Describe an error: the system's text, and the file."""
    if isinstance(error, OSError) and error.strerror:
        where: Any = error.filename
        text = f"{where}: {error.strerror}" if where else error.strerror
        if isinstance(error, (FileExistsError, NotADirectoryError)):
            text += "; a file has this name, and checkpoints lie in a directory: give another name"
        return text
    return f"{type(error).__name__}: {error}"


def make(directory: str) -> None:
    """Make a directory and its parents, and flush their names to the disk."""
    if os.path.isdir(directory):
        return
    parent = os.path.dirname(directory)
    make(parent)
    os.mkdir(directory)
    sync(parent)


def sync(directory: str) -> None:
    """Flush the names in a directory to the disk."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # the file system has no fsync of directories
            raise
    finally:
        os.close(descriptor)


@contextmanager
def marked(directory: str) -> Iterator[str]:
    """Put a file with a random name into a new directory; yield the name, for `has_mark`."""
    mark = f".mark-{os.urandom(16).hex()}"
    path = os.path.join(directory, mark)
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    try:
        yield mark
    finally:
        os.unlink(path)


def has_mark(directory: str, mark: str) -> bool:
    """Return whether the directory of this name is the marked one, on every machine alike.

    Another machine may have a directory of the same name on a disk of its own.
    """
    return os.path.isfile(os.path.join(directory, mark))


@contextmanager
def locked(directory: str) -> Iterator[None]:
    """Hold the lock of a directory, so that one process at a time saves into it."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise CheckpointError(
                f"{directory}: another process is saving into it; give each job its own directory"
            ) from error
        except OSError as error:
            if error.errno not in (errno.EBADF, errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS):
                raise  # else the file system has no locks on directories
        yield
    finally:
        os.close(descriptor)
