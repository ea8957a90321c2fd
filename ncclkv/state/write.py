"""Saving: a checkpoint is written aside, flushed to the disk, and then given its name."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Generator, Iterable, Iterator
from typing import Any

from ncclkv.errors import CheckpointError
from ncclkv.state import plain
from ncclkv.state.generations import (
    HEAD,
    SUMS,
    generations,
    locked,
    make,
    next_name,
    remove,
    remove_leftovers,
    sync,
)
from ncclkv.state.head import Head, to_plain
from ncclkv.state.tensors import Array, encode

FORMAT = "ncclkv checkpoint"
VERSION = 1

MOST_HEAD_BYTES = 256 * 1024 * 1024
"""``checkpoint.json`` is no longer than this."""

FILE_BYTES = 128 * 1024 * 1024
"""A file is full once its arrays have so many bytes; so much is in memory again while saving."""

NamedArrays = Iterable[tuple[str, Array]]


def write(
    directory: str, head: Head, arrays: NamedArrays, keep: int, author: str
) -> Generator[None, None, str]:
    """Save a checkpoint; a generator, which yields whenever it has written a file.

    Whenever it ends, by an exception or because the process does, the directory holds the
    checkpoints that it held before, or the new one as well.

    Parameters
    ----------
    directory : str
        An absolute path; it is made if it is not there.
    head : Head
    arrays : iterable of (str, ndarray)
        The head's tensors, made one after another.
    keep : int
        So many checkpoints of its kind stay, the new one included.
    author : str
        What wrote it, with its version.

    Returns
    -------
    str
        The new checkpoint's path.

    Raises
    ------
    CheckpointError, OSError
    """
    make(directory)
    with locked(directory):
        remove_leftovers(directory)
        name = next_name(generations(directory), head.step, values=head.values)
        aside = os.path.join(directory, f".saving-{name}")
        path = os.path.join(directory, name)
        try:
            os.mkdir(aside)
            yield from _fill(aside, head, arrays, author)
            os.rename(aside, path)
        except BaseException:
            shutil.rmtree(aside, ignore_errors=True)
            raise
        sync(directory)
        alike = [other for other in generations(directory) if other.values == head.values]
        try:
            remove(directory, alike[keep:])
        except OSError as error:
            raise CheckpointError(
                f"{path} is complete, but an older checkpoint cannot be removed: {reason(error)}"
            ) from error
    return path


def _fill(
    directory: str, head: Head, arrays: NamedArrays, author: str
) -> Generator[None, None, None]:
    """Write the files of a checkpoint."""
    files = []
    for number, some in enumerate(_filling(arrays)):
        name = f"tensors-{number:04}.safetensors"
        blob = encode(some)
        _put(directory, name, blob)
        sha256 = hashlib.sha256(blob).hexdigest()
        files.append({"name": name, "bytes": len(blob), "sha256": sha256})
        yield
    about = {"format": FORMAT, "version": VERSION, "author": author, "files": files}
    text = plain.dumps({**about, **to_plain(head)})
    if len(text) > MOST_HEAD_BYTES:
        raise CheckpointError(
            f"{HEAD} would have {len(text):,} bytes, and {MOST_HEAD_BYTES:,} are the most; give "
            f"less as extra"
        )
    _put(directory, HEAD, text)
    _put(directory, SUMS, sums_of(text))
    sync(directory)


def sums_of(text: bytes) -> bytes:
    """The file that tells whether ``checkpoint.json`` is whole, as ``sha256sum -c`` reads it."""
    return f"{hashlib.sha256(text).hexdigest()}  {HEAD}\n".encode()


def _filling(arrays: NamedArrays) -> Iterator[dict[str, Array]]:
    """The arrays of one file after another."""
    some: dict[str, Array] = {}
    held = 0
    for name, array in arrays:
        some[name] = array
        held += array.nbytes
        if held >= FILE_BYTES:
            yield some
            some, held = {}, 0
    if some:
        yield some


def _put(directory: str, name: str, blob: bytes) -> None:
    """Write a new file, down to the disk."""
    path = os.path.join(directory, name)
    try:
        with open(path, "xb") as file:
            file.write(blob)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        error.filename = path  # a failed write does not know where it was
        raise


def reason(error: BaseException) -> str:
    """What went wrong, in the system's words, and where."""
    if isinstance(error, OSError) and error.strerror:
        where: Any = error.filename
        return f"{where}: {error.strerror}" if where else error.strerror
    return f"{type(error).__name__}: {error}"
