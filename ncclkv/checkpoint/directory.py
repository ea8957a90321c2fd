"""The checkpoints in a directory: one for each save, the last few of which are kept.

A generation is a directory ``step-000000120-save-000003``: the third save into this directory, of
step 120.  Saves are numbered since a run may go back to an earlier step.  One without values, of an
optimizer alone, has ``-states`` at its end.  It gets its name by a rename, when all of it is on the
disk, and loses it by another, before any of it is removed; so whatever has the name is complete.
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

HEAD = "checkpoint.json"
SUMS = "checkpoint.sha256"

_NAME = re.compile(r"step-([0-9]{9,})-save-([0-9]{6,})(-states)?")
_LEFT = re.compile(rf"\.(saving|removing)-{_NAME.pattern}")


class Generation(NamedTuple):
    """A checkpoint in a directory; `values` tells whether it is more than an optimizer's states."""

    save: int
    step: int
    values: bool
    path: str


def generations(directory: str) -> list[Generation]:
    """The checkpoints in a directory, the newest first."""
    found = []
    for name in os.listdir(directory):
        match = _NAME.fullmatch(name)
        if match:
            path = os.path.join(directory, name)
            found.append(Generation(int(match[2]), int(match[1]), not match[3], path))
    return sorted(found, reverse=True)


def next_name(found: Sequence[Generation], step: int, *, values: bool) -> str:
    """The name of a new checkpoint beside the others."""
    save = found[0].save + 1 if found else 1
    return f"step-{step:09}-save-{save:06}{'' if values else '-states'}"


def named_step(path: str) -> int | None:
    """Return the step that a checkpoint's name says; None for another name."""
    match = _NAME.fullmatch(os.path.basename(path))
    return int(match[1]) if match else None


def remove(directory: str, old: Sequence[Generation]) -> None:
    """Remove checkpoints, each of which is there as a whole or has no checkpoint's name.

    One that cannot be removed is logged: the newer ones are complete.
    """
    for generation in old:
        aside = os.path.join(directory, f".removing-{os.path.basename(generation.path)}")
        with _logged(generation.path):
            os.rename(generation.path, aside)
            _delete(aside)


def remove_leftovers(directory: str) -> None:
    """Remove what a killed save has left behind; what cannot be removed is logged."""
    for name in os.listdir(directory):
        if _LEFT.fullmatch(name):
            path = os.path.join(directory, name)
            with _logged(path):
                _delete(path)


def _delete(path: str) -> None:
    """Remove a directory with all that is in it; of a link or another file, that alone."""
    if stat.S_ISDIR(os.lstat(path).st_mode):
        shutil.rmtree(path)
    else:
        os.unlink(path)


@contextmanager
def _logged(path: str) -> Iterator[None]:
    """Log a failure to remove what is no longer needed."""
    try:
        yield
    except OSError as error:
        _log.warning(
            "%s is no longer needed and cannot be removed (%s); remove it by hand",
            path,
            reason(error),
        )


def reason(error: BaseException) -> str:
    """Return what went wrong, in the system's words, and where."""
    if isinstance(error, OSError) and error.strerror:
        where: Any = error.filename
        return f"{where}: {error.strerror}" if where else error.strerror
    return f"{type(error).__name__}: {error}"


def make(directory: str) -> None:
    """Make a directory and those that it lies in, so that none is lost with the power."""
    if os.path.isdir(directory):
        return
    parent = os.path.dirname(directory)
    make(parent)
    os.mkdir(directory)
    sync(parent)


def sync(directory: str) -> None:
    """Have the names in a directory written to the disk."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some file systems do not know how, and need it not
            raise
    finally:
        os.close(descriptor)


@contextmanager
def locked(directory: str) -> Iterator[None]:
    """Be the only one who saves into a directory."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise CheckpointError(
                f"{directory}: another process is saving into it; give each job a directory of "
                f"its own"
            ) from error
        except OSError as error:
            if error.errno not in (errno.EBADF, errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS):
                raise  # else the file system has no locks on directories
        yield
    finally:
        os.close(descriptor)
