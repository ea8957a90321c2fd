"""Load checkpoints; nothing in them is used before it has been checked."""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import re
import stat
from collections.abc import Callable, Collection, Generator, Iterator
from contextlib import contextmanager
from io import FileIO
from typing import NamedTuple

from ncclkv.checkpoint import strict_json
from ncclkv.checkpoint.directory import MANIFEST, SUMS, generations, named_step, reason
from ncclkv.checkpoint.manifest import Manifest, from_plain, limits
from ncclkv.checkpoint.strict_json import Fields, Limits, Unsound
from ncclkv.checkpoint.tensors import Array, Tensor, decode
from ncclkv.checkpoint.write import FORMAT, VERSION, sums_of
from ncclkv.table.registry import Key

_log = logging.getLogger("ncclkv")

_MOST_SUMS_BYTES = 1024
# Bytes of a tensor's name, dtype, shape and offsets in its file's header.
_MOST_TENSOR_HEADER = 2048

_FILE_NAME = re.compile(r"tensors-[0-9]{4,}\.safetensors")
_SHA256 = re.compile(r"[0-9a-f]{64}")


Check = Callable[[Manifest], object]


class File(NamedTuple):
    """Entry of ``checkpoint.json`` for a file of tensors."""

    name: str
    nbytes: int
    sha256: str


class LoadedCheckpoint(NamedTuple):
    """A checkpoint in memory."""

    path: str
    manifest: Manifest
    arrays: dict[str, Array]


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
    Unsound
        When the newest checkpoint is damaged; the message names an older undamaged one.
    OSError
    """
    most = limits(keys)
    if os.path.lexists(os.path.join(directory, MANIFEST)):
        return (yield from _whole(directory, check, most))
    try:
        found = generations(directory)
        newest, *older = [other.path for other in found if other.values or not values]
    except (FileNotFoundError, ValueError):
        return None
    try:
        return (yield from _generation(newest, check, most))
    except Unsound as error:
        # Without `fallback` an older checkpoint is only named, so it need not fit the store.
        sound = yield from _first_sound(older, check if fallback else _any_manifest, most)
        if not fallback or sound is None:
            path = None if sound is None else sound.path
            raise Unsound(f"{error}; {_advice(older, path)}") from error
        _log.warning("%s; %s is loaded instead", error, sound.path)
        return sound


def read_manifest(path: str) -> Manifest:
    """Return the manifest of a checkpoint.

    Raises
    ------
    Unsound
    """
    with _at(os.path.join(path, MANIFEST)):
        manifest, _ = _manifest(path, limits(None))
    return manifest


def _any_manifest(manifest: Manifest) -> None:
    """Accept every manifest."""


def _generation(path: str, check: Check, most: Limits) -> Generator[None, None, LoadedCheckpoint]:
    """Load a checkpoint found in a directory; unlike a path of the user, it must not be a link."""
    if not stat.S_ISDIR(os.lstat(path).st_mode):
        raise Unsound(f"{path}: it is no directory")
    return (yield from _whole(path, check, most))


def _first_sound(
    paths: list[str], check: Check, most: Limits
) -> Generator[None, None, LoadedCheckpoint | None]:
    """Load the first checkpoint that is undamaged."""
    for path in paths:
        try:
            return (yield from _generation(path, check, most))
        except (Unsound, OSError):
            continue
    return None


def _advice(older: list[str], sound: str | None) -> str:
    """Return advice for the user when the newest checkpoint is damaged."""
    if sound is not None:
        return f"an older checkpoint is sound: kv.load({sound!r})"
    if older:
        return f"none of the {len(older)} older checkpoints beside it is sound either"
    return "copy it anew from where it was saved, or load another one"


def _whole(path: str, check: Check, most: Limits) -> Generator[None, None, LoadedCheckpoint]:
    """Load a checkpoint and check all of it."""
    with _at(os.path.join(path, MANIFEST)):
        manifest, files = _manifest(path, most)
        named = named_step(path)
        if named not in (None, manifest.step):
            raise Unsound(
                f"it is of step {manifest.step}, and its directory is named as of step {named}: "
                f"it was renamed"
            )
        wanted = manifest.tensors()
        _check_sizes(files, wanted)
    check(manifest)
    arrays: dict[str, Array] = {}
    for file in files:
        where = os.path.join(path, file.name)
        with _at(where):
            more = _tensors(where, file, wanted)
            if not arrays.keys().isdisjoint(more):
                raise Unsound("it has a tensor that another file has as well")
        arrays.update(more)
        yield
    if arrays.keys() != wanted.keys():
        missing = min(wanted.keys() - arrays.keys())
        raise Unsound(f"{path}: no file of it has the tensor {missing}")
    return LoadedCheckpoint(path, manifest, arrays)


@contextmanager
def _at(path: str) -> Iterator[None]:
    """Begin the text of an `Unsound` error with the path of the file."""
    try:
        yield
    except Unsound as error:
        raise Unsound(f"{path}: {error}") from error
    except RecursionError as error:
        raise Unsound(f"{path}: it is nested too deeply") from error


def _manifest(path: str, most: Limits) -> tuple[Manifest, list[File]]:
    """Return the manifest and the files of a checkpoint, after checking digest and version."""
    text = _bytes(os.path.join(path, MANIFEST), most.nbytes)
    if _bytes(os.path.join(path, SUMS), _MOST_SUMS_BYTES) != sums_of(text):
        raise Unsound(f"it is not what {SUMS} beside it was made of: one of them is damaged")
    fields = Fields(strict_json.loads(text, most), "it")
    if fields.any("format") != FORMAT:
        raise Unsound(f"its format is {fields.any('format')!r:.60}, not {FORMAT!r}")
    version = fields.whole("version")
    if version != VERSION:
        raise Unsound(
            f"it is of version {version} of the format, and this ncclkv reads version {VERSION}"
        )
    return from_plain(fields), _files(fields.objects("files"))


def _files(listed: list[Fields]) -> list[File]:
    """Return the files of tensors; refuse names outside the checkpoint's directory."""
    files = [File(row.text("name"), row.whole("bytes"), row.text("sha256")) for row in listed]
    for file in files:
        if not _FILE_NAME.fullmatch(file.name) or not _SHA256.fullmatch(file.sha256):
            raise Unsound(f"{file.name!r:.60} with SHA-256 {file.sha256!r:.70} is no file of it")
    if len({file.name for file in files}) != len(files):
        raise Unsound("a file is in it twice")
    return files


def _check_sizes(files: list[File], wanted: dict[str, Tensor]) -> None:
    """Refuse files that are too small for the arrays, or much too large."""
    held, needed = sum(file.nbytes for file in files), sum(t.nbytes for t in wanted.values())
    spare = _MOST_TENSOR_HEADER * (len(wanted) + len(files))
    if not needed <= held <= needed + spare:
        raise Unsound(f"its arrays take {needed:,} bytes, and its files have {held:,}")


def _tensors(path: str, file: File, wanted: dict[str, Tensor]) -> dict[str, Array]:
    """Return the arrays of a file after checking its digest."""
    blob = _bytes(path, file.nbytes, exactly=True)
    if hashlib.sha256(blob).hexdigest() != file.sha256:
        raise Unsound(f"its SHA-256 is not the one that {MANIFEST} has: it is damaged")
    return decode(blob, wanted)


def _bytes(path: str, most: int, *, exactly: bool = False) -> bytes:
    """Read a regular file of at most, or exactly, `most` bytes."""
    name = os.path.basename(path)
    try:
        # Without O_NONBLOCK, opening a pipe would wait for its writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            facts = os.fstat(descriptor)
            if not stat.S_ISREG(facts.st_mode):
                raise Unsound(f"{name} is no regular file")
            if facts.st_size > most or (exactly and facts.st_size != most):
                limit = f"{most:,} should be there" if exactly else f"{most:,} are the most"
                raise Unsound(f"{name} has {facts.st_size:,} bytes, and {limit}")
            with FileIO(descriptor, closefd=False) as file:
                return file.readall()
        finally:
            os.close(descriptor)
    except OSError as error:
        linked = error.errno == errno.ELOOP
        raise Unsound(f"{name} is a symbolic link" if linked else reason(error)) from error
