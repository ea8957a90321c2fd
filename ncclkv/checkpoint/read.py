"""Load checkpoints: no part of a file is used before it has been checked.

Only regular files of the recorded sizes and digests are read; links are refused.  The JSON has
limited length, no repeated names and no NaN.  Step and directory name must agree.  All tensors must
have the recorded names, shapes and dtypes, which may not need more bytes than the files have.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import stat
from collections.abc import Callable, Collection, Generator, Iterator
from contextlib import contextmanager
from io import FileIO
from typing import NamedTuple

from ncclkv.checkpoint import strict_json
from ncclkv.checkpoint.directory import MANIFEST, SUMS, generations, named_step, reason
from ncclkv.checkpoint.files import Assembly, File, Piece, from_rows
from ncclkv.checkpoint.manifest import Manifest, from_plain, size_limit
from ncclkv.checkpoint.residuals import parse_name
from ncclkv.checkpoint.strict_json import ANY, DamagedCheckpoint, check_form
from ncclkv.checkpoint.tensors import Array, Tensor, decode
from ncclkv.checkpoint.write import FORMAT, VERSION, sums_of
from ncclkv.table.registry import Key

_log = logging.getLogger("ncclkv")

_SUMS_BYTES = 1024
# Bytes of a tensor's name, dtype, shape and offsets in its file's header.
_TENSOR_HEADER_BYTES = 2048

_HEAD_FORM = {"format": ANY, "version": int}

Check = Callable[[Manifest], object]


class LoadedCheckpoint(NamedTuple):
    """A checkpoint in memory, without its residuals.

    Attributes
    ----------
    path : str
    manifest : Manifest
    arrays : dict of ndarray
        The tensors by name, but residuals: `read_residuals` reads these.
    assembly : Assembly
    """

    path: str
    manifest: Manifest
    arrays: dict[str, Array]
    assembly: Assembly


def read(
    directory: str,
    check: Check,
    *,
    values: bool = True,
    fallback: bool = False,
    keys: Collection[Key] | None = None,
) -> Generator[None, None, LoadedCheckpoint | None]:
    """Load a checkpoint, or the newest in a directory; a generator that yields after each file.

    Parameters
    ----------
    directory : str
        An absolute path.
    check : callable
        Called with the manifest before any array is read; raises an error to refuse it.
    values : bool
        Skip checkpoints of optimizer states alone.
    fallback : bool
        Load the newest undamaged checkpoint when newer ones are damaged, with a warning.
    keys : collection of keys, optional
        Keys of the store, if any are known; they limit the bytes that are read.

    Returns
    -------
    LoadedCheckpoint or None
        None when the directory holds no checkpoint.

    Raises
    ------
    DamagedCheckpoint
        When the newest checkpoint is damaged; the message names an older undamaged one.
    OSError
    """
    limit = size_limit(keys)
    if os.path.lexists(os.path.join(directory, MANIFEST)):
        return (yield from _checkpoint(directory, check, limit))
    try:
        paths = [each.path for each in generations(directory) if each.values or not values]
    except FileNotFoundError:
        return None
    damage: DamagedCheckpoint | None = None
    for path in paths:
        try:
            # Without `fallback` an older checkpoint is only named, so it need not fit the store.
            fits = check if fallback or damage is None else _accept_any
            if not stat.S_ISDIR(os.lstat(path).st_mode):  # a path of the user may be a link
                raise DamagedCheckpoint(f"{path}: it is not a directory")
            found = yield from _checkpoint(path, fits, limit)
        except DamagedCheckpoint as error:
            damage = damage or error
            continue
        except OSError:
            if damage is None:
                raise
            continue
        if damage is None:
            return found
        if not fallback:
            advice = f"an older checkpoint is intact: kv.load({path!r})"
            raise DamagedCheckpoint(f"{damage}; {advice}") from damage
        _log.warning("%s; %s is loaded instead", damage, path)
        return found
    if damage is not None:
        raise DamagedCheckpoint(f"{damage}; {_advice(len(paths) - 1)}") from damage
    return None


def read_manifest(path: str) -> Manifest:
    """Return the manifest of a checkpoint.

    Raises
    ------
    DamagedCheckpoint
    """
    with _in_file(os.path.join(path, MANIFEST)):
        manifest, _ = _manifest(path, size_limit(None))
    return manifest


def _accept_any(manifest: Manifest) -> None:
    """Accept every manifest."""


def _advice(older: int) -> str:
    """Return advice when neither the newest checkpoint nor one of `older` others is intact."""
    if older:
        return f"none of the {older} older checkpoints beside it is intact either"
    return "copy it again from where it was saved, or load another checkpoint"


def _checkpoint(path: str, check: Check, limit: int) -> Generator[None, None, LoadedCheckpoint]:
    """Load a checkpoint and check all of it."""
    with _in_file(os.path.join(path, MANIFEST)):
        manifest, files = _manifest(path, limit)
        named = named_step(path)
        if named not in (None, manifest.step):
            raise DamagedCheckpoint(
                f"it is of step {manifest.step}, and its directory is named as of step {named}; "
                f"give the directory its old name"
            )
        wanted = manifest.tensors()
        assembly = Assembly(files, wanted, manifest.residuals())
        _check_sizes(files, wanted)
    check(manifest)
    for file in files:
        where = os.path.join(path, file.name)
        with _in_file(where):
            assembly.add(file, _tensors(where, file, assembly.stored(file)))
        yield
    with _in_file(path):
        arrays = assembly.complete()
    return LoadedCheckpoint(path, manifest, arrays, assembly)


def read_residuals(loaded: LoadedCheckpoint) -> Iterator[list[tuple[Piece, Array]]]:
    """Yield the residuals of each file of a loaded checkpoint: whole tensors, and pieces.

    The files are read and checked again: the residuals of all senders may not fit in memory.
    In a file the residuals of a key are in the order of their senders.

    Raises
    ------
    DamagedCheckpoint
    """
    for file in loaded.assembly.passed:
        where = os.path.join(loaded.path, file.name)
        with _in_file(where):
            found = _tensors(where, file, loaded.assembly.stored(file))
        parts = loaded.assembly.passing(file, found)
        yield sorted(parts, key=lambda part: (parse_name(part[0].tensor), part[0].lo))


@contextmanager
def _in_file(path: str) -> Iterator[None]:
    """Begin the text of an `DamagedCheckpoint` error with the path of the file."""
    try:
        yield
    except DamagedCheckpoint as error:
        raise DamagedCheckpoint(f"{path}: {error}") from error
    except RecursionError as error:
        raise DamagedCheckpoint(f"{path}: it is nested too deeply") from error


def _manifest(path: str, limit: int) -> tuple[Manifest, list[File]]:
    """Return the manifest and the files of a checkpoint, after checking digest and version."""
    text = _read_file(os.path.join(path, MANIFEST), limit)
    if _read_file(os.path.join(path, SUMS), _SUMS_BYTES) != sums_of(text):
        raise DamagedCheckpoint(
            f"its SHA-256 is not the one in {SUMS}: one of the two files is damaged"
        )
    made = strict_json.loads(text, limit)
    check_form(made, _HEAD_FORM)
    if made["format"] != FORMAT:
        raise DamagedCheckpoint(f"its format is {made['format']!r:.60}, not {FORMAT!r}")
    if made["version"] != VERSION:
        raise DamagedCheckpoint(
            f"it has version {made['version']} of the format; this ncclkv reads version {VERSION}"
        )
    return from_plain(made), from_rows(made)


def _check_sizes(files: list[File], wanted: dict[str, Tensor]) -> None:
    """Refuse files that are too small for the arrays, or much too large."""
    held, needed = sum(file.nbytes for file in files), sum(t.nbytes for t in wanted.values())
    stored = len(wanted) + sum(len(file.pieces) for file in files)
    spare = _TENSOR_HEADER_BYTES * (stored + len(files))
    if not needed <= held <= needed + spare:
        raise DamagedCheckpoint(f"its arrays need {needed:,} bytes, and its files have {held:,}")


def _tensors(path: str, file: File, wanted: dict[str, Tensor]) -> dict[str, Array]:
    """Return the arrays of a file after checking its digest."""
    blob = _read_file(path, file.nbytes, exactly=True)
    if hashlib.sha256(blob).hexdigest() != file.sha256:
        raise DamagedCheckpoint(f"its SHA-256 is not the one in {MANIFEST}: it is damaged")
    return decode(blob, wanted)


def _read_file(path: str, limit: int, *, exactly: bool = False) -> bytes:
    """Return the bytes of a regular file of at most, or exactly, `limit` bytes."""
    name = os.path.basename(path)
    try:
        # Without O_NONBLOCK, opening a pipe would wait for its writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise DamagedCheckpoint(f"{name} is not a regular file")
            if status.st_size > limit or (exactly and status.st_size != limit):
                wanted = f"{limit:,} were saved" if exactly else f"the limit is {limit:,}"
                raise DamagedCheckpoint(f"{name} has {status.st_size:,} bytes; {wanted}")
            with FileIO(descriptor, closefd=False) as file:
                return file.readall()
        finally:
            os.close(descriptor)
    except OSError as error:
        linked = error.errno == errno.ELOOP
        text = f"{name} is a symbolic link" if linked else reason(error)
        raise DamagedCheckpoint(text) from error
