"""Saving: a checkpoint is written aside, flushed to the disk, and then given its name."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Generator, Iterable, Iterator

from ncclkv.checkpoint import strict_json
from ncclkv.checkpoint.directory import (
    HEAD,
    SUMS,
    generations,
    locked,
    make,
    next_name,
    reason,
    remove,
    remove_leftovers,
    sync,
)
from ncclkv.checkpoint.manifest import Manifest, limits, to_plain
from ncclkv.checkpoint.tensors import Array, encode
from ncclkv.errors import CheckpointError

FORMAT = "ncclkv checkpoint"
VERSION = 1

FILE_BYTES = 128 * 1024 * 1024
"""A file is full once its arrays have so many bytes; so much is in memory again while saving."""

NamedArrays = Iterable[tuple[str, Array]]


def write(
    directory: str, head: Manifest, arrays: NamedArrays, keep: int, author: str
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
        found = generations(directory)
        name = next_name(found, head.step, values=head.values)
        aside = os.path.join(directory, f".saving-{name}")
        path = os.path.join(directory, name)
        try:
            os.mkdir(aside)
            yield from _fill(aside, head, arrays, author)
            os.rename(aside, path)
        except BaseException:
            shutil.rmtree(aside, ignore_errors=True)
            raise
        try:
            sync(directory)
        except OSError as error:
            raise CheckpointError(
                f"{path} is complete, but may be lost with the power: {reason(error)}"
            ) from error
        remove(directory, [other for other in found if other.values == head.values][keep - 1 :])
    return path


def _fill(
    directory: str, head: Manifest, arrays: NamedArrays, author: str
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
    text = strict_json.dumps({**about, **to_plain(head)})
    try:
        limits(spec.key for spec in head.specs).check(text)
    except strict_json.Unsound as error:
        raise CheckpointError(f"{HEAD} cannot be written: {error}; give less as extra") from error
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
