"""Save checkpoints: written under a hidden name, flushed to the disk, then renamed.

The directory above is flushed after the rename.  An old checkpoint is renamed to a name with a dot
before its files are removed.  So a directory with a checkpoint's name is complete at every moment.
The next save removes what a killed save has left.  A lock on the directory refuses a second job
that saves at the same time.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import TypeAlias

from ncclkv.checkpoint import directory, strict_json
from ncclkv.checkpoint.directory import MANIFEST, SUMS
from ncclkv.checkpoint.files import File, Piece, file_name, rows
from ncclkv.checkpoint.manifest import Manifest, size_limit, to_plain
from ncclkv.checkpoint.tensors import Array, batches, encode
from ncclkv.errors import CheckpointError

FORMAT = "ncclkv checkpoint"
VERSION = 1

FILE_BYTES = 128 * 1024 * 1024
"""Bytes of arrays after which a file is full; saving takes as much extra memory."""

NamedArrays: TypeAlias = Iterable[tuple[str | Piece, Array]]
"""Tensors by name and pieces of tensors; a piece has one axis."""

Fill: TypeAlias = Callable[[str], Generator[None, None, tuple[Manifest, Sequence[File]]]]
"""Writes the tensors into a folder, yields after each file, and returns the manifest and files."""


def write(
    folder: str, step: int, fill: Fill, keep: int, author: str, *, values: bool = True
) -> Generator[None, None, str]:
    """Save a checkpoint; a generator that yields when `fill` does.

    If the save ends early, by an exception or a kill, the directory holds the earlier checkpoints,
    and perhaps the new one; all of them are complete.

    Parameters
    ----------
    folder : str
        An absolute path; made if it does not exist.
    step : int
    fill : callable
        Called with the path of the new directory, which has its final name only at the end.
    keep : int
        Count of checkpoints of this kind to keep, the new one included.
    author : str
        Name and version of the program that saves.
    values : bool
        False for a checkpoint of an optimizer's states alone.

    Returns
    -------
    str
        The new checkpoint's path.

    Raises
    ------
    CheckpointError, OSError
    """
    directory.make(folder)
    with directory.locked(folder):
        directory.remove_leftovers(folder)
        found = directory.generations(folder)
        name = directory.next_name(found, step, values=values)
        hidden = os.path.join(folder, f".saving-{name}")
        path = os.path.join(folder, name)
        try:
            os.mkdir(hidden)
            manifest, files = yield from fill(hidden)
            _write_manifest(hidden, manifest, files, author)
            os.rename(hidden, path)
        except BaseException:
            shutil.rmtree(hidden, ignore_errors=True)
            raise
        try:
            directory.sync(folder)
        except OSError as error:
            raise CheckpointError(
                f"{path} is complete, but a loss of power may remove it: {directory.reason(error)}"
            ) from error
        of_kind = [other for other in found if other.values == values]
        directory.remove(folder, of_kind[keep - 1 :])
    return path


def write_files(
    folder: str, arrays: NamedArrays, rank: int | None = None
) -> Generator[None, None, list[File]]:
    """Write tensors to files, flushed to the disk; a generator that yields after each file.

    Parameters
    ----------
    folder : str
    arrays : iterable of (str or Piece, ndarray)
        Made one after another.
    rank : int, optional
        The rank that writes, if several ranks write into the folder.

    Returns
    -------
    list of File

    Raises
    ------
    OSError
    """
    files = []
    for index, batch in enumerate(batches(arrays, lambda item: item[1].nbytes, FILE_BYTES)):
        name = file_name(index, rank)
        blob = encode({of if isinstance(of, str) else of.name: array for of, array in batch})
        _write_file(folder, name, blob)
        pieces = tuple(of for of, _ in batch if isinstance(of, Piece))
        files.append(File(name, len(blob), hashlib.sha256(blob).hexdigest(), pieces))
        del blob, batch  # else the next file would be made beside them
        yield
    return files


def _write_manifest(folder: str, manifest: Manifest, files: Sequence[File], author: str) -> None:
    """Write ``checkpoint.json`` and its digest, once all files of tensors are on the disk."""
    about = {"format": FORMAT, "version": VERSION, "author": author, "files": rows(files)}
    text = strict_json.dumps({**about, **to_plain(manifest)})
    pieces = sum(len(file.pieces) for file in files)
    try:
        strict_json.check_size(text, size_limit((key.spec.key for key in manifest.keys), pieces))
    except strict_json.DamagedCheckpoint as error:
        fewer = f", or save on fewer ranks: it lists {pieces:,} pieces" if pieces else ""
        raise CheckpointError(
            f"{MANIFEST} cannot be written: {error}; give a smaller extra{fewer}"
        ) from error
    _write_file(folder, MANIFEST, text)
    _write_file(folder, SUMS, sums_of(text))
    directory.sync(folder)


def sums_of(text: bytes) -> bytes:
    """Return the digest file of ``checkpoint.json``, in the format of ``sha256sum -c``."""
    return f"{hashlib.sha256(text).hexdigest()}  {MANIFEST}\n".encode()


def _write_file(folder: str, name: str, blob: bytes) -> None:
    """Write a new file and flush it to the disk."""
    path = os.path.join(folder, name)
    try:
        with open(path, "xb") as file:
            file.write(blob)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        error.filename = path  # the error of a failed write has no filename
        raise
