"""Save checkpoints: written under a hidden name, flushed to the disk, then renamed."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Generator, Iterable

from ncclkv.checkpoint import directory, strict_json
from ncclkv.checkpoint.directory import MANIFEST, SUMS
from ncclkv.checkpoint.manifest import Manifest, size_limit, to_plain
from ncclkv.checkpoint.tensors import Array, batches, encode
from ncclkv.errors import CheckpointError

FORMAT = "ncclkv checkpoint"
VERSION = 2

FILE_BYTES = 128 * 1024 * 1024
"""Bytes of arrays after which a file is full; saving takes as much extra memory."""

NamedArrays = Iterable[tuple[str, Array]]


def write(
    folder: str, manifest: Manifest, arrays: NamedArrays, keep: int, author: str
) -> Generator[None, None, str]:
    """Save a checkpoint; a generator that yields after each file it writes.

    If the save ends early, by an exception or a kill, the directory holds the earlier checkpoints,
    and perhaps the new one; all of them are complete.

    Parameters
    ----------
    folder : str
        An absolute path; made if it does not exist.
    manifest : Manifest
    arrays : iterable of (str, ndarray)
        The manifest's tensors, made one after another.
    keep : int
        Number of checkpoints of this kind to keep, the new one included.
    author : str
        Name and version of the program that saves.

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
        name = directory.next_name(found, manifest.step, values=manifest.values)
        hidden = os.path.join(folder, f".saving-{name}")
        path = os.path.join(folder, name)
        try:
            os.mkdir(hidden)
            yield from _write_files(hidden, manifest, arrays, author)
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
        of_kind = [other for other in found if other.values == manifest.values]
        directory.remove(folder, of_kind[keep - 1 :])
    return path


def _write_files(
    folder: str, manifest: Manifest, arrays: NamedArrays, author: str
) -> Generator[None, None, None]:
    """Write the files of a checkpoint."""
    files = []
    parts = batches(arrays, lambda item: item[1].nbytes, FILE_BYTES)
    for number, part in enumerate(parts):
        name = f"tensors-{number:04}.safetensors"
        blob = encode(dict(part))
        _write_file(folder, name, blob)
        sha256 = hashlib.sha256(blob).hexdigest()
        files.append({"name": name, "bytes": len(blob), "sha256": sha256})
        yield
    about = {"format": FORMAT, "version": VERSION, "author": author, "files": files}
    text = strict_json.dumps({**about, **to_plain(manifest)})
    try:
        strict_json.check_size(text, size_limit(key.spec.key for key in manifest.keys))
    except strict_json.DamagedCheckpoint as error:
        raise CheckpointError(
            f"{MANIFEST} cannot be written: {error}; give a smaller extra"
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
