"""Calls of g++ for build.py; objects are stored by a digest of their inputs."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.nccl.emulated.missing import Missing

FLAGS = ("-O2", "-fPIC", "-pthread")
OWN_FLAGS = (*FLAGS, "-std=c++17", "-Wall", "-Wextra")
HERE = Path(__file__).resolve().parent
LIMIT = 300.0
"""Seconds that one call of g++ may take."""


class Failed(Exception):
    """Error of a command, with its output."""


@dataclass(frozen=True)
class Source:
    """A file to compile.

    Attributes
    ----------
    path : pathlib.Path
    flags : tuple of str
    include : tuple of pathlib.Path
        Folders of headers.
    digest : str
        A text that changes with the headers in these folders.
    """

    path: Path
    flags: tuple[str, ...]
    include: tuple[Path, ...]
    digest: str

    def key(self) -> str:
        """Return a digest of all inputs of the object."""
        return digest(version(), *self.flags, self.digest, self.path.name, self.path.read_bytes())


def digest(*parts: str | bytes) -> str:
    """Return a short digest of texts and bytes."""
    total = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        total.update(f"{len(data)}:".encode() + data)
    return total.hexdigest()[:16]


def digest_of(paths: Sequence[Path]) -> str:
    """Return a digest of files, by name and content."""
    return digest(*(part for path in sorted(paths) for part in (path.name, path.read_bytes())))


@cache
def gxx() -> str:
    """Return the path of g++."""
    found = shutil.which("g++")
    if found is None:
        raise Missing("there is no g++ on PATH (Debian and Ubuntu have it in the package g++)")
    return found


@cache
def version() -> str:
    """Return the first line of g++'s version."""
    return run([gxx(), "--version"]).partition("\n")[0]


def preprocessed(text: str, include: Sequence[Path]) -> str:
    """Return a C++ text after the preprocessor."""
    return run([gxx(), "-E", "-P", "-x", "c++", *_include(include), "-"], text)


def compile_all(sources: Sequence[Source], folder: Path) -> list[Path]:
    """Compile the missing objects, two at a time; return all objects in order."""
    folder.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(lambda source: _object(source, folder), sources))


def _object(source: Source, folder: Path) -> Path:
    target = folder / f"{source.path.stem}-{source.key()}.o"
    if not target.exists():
        unfinished = target.with_suffix(".unfinished")
        run([gxx(), *source.flags, *_include(source.include),
             "-c", str(source.path), "-o", str(unfinished)])  # fmt: skip
        unfinished.replace(target)
    return target


def link(target: Path, objects: Sequence[Path], *arguments: str) -> None:
    """Link objects into a shared library."""
    target.parent.mkdir(parents=True, exist_ok=True)
    run([gxx(), "-shared", "-pthread", "-o", str(target), *map(str, objects), *arguments])


def _include(folders: Sequence[Path]) -> list[str]:
    # no warnings in foreign headers
    return [
        argument
        for folder in folders
        for argument in ("-I" if folder.is_relative_to(HERE) else "-isystem", str(folder))
    ]


def run(command: Sequence[str], text: str = "") -> str:
    """Run a command; return its output, or raise with its errors."""
    ended = subprocess.run(
        command, input=text, capture_output=True, text=True, timeout=LIMIT, check=False
    )
    if ended.returncode:
        raise Failed(f"{' '.join(command)}\n{ended.stderr}")
    return ended.stdout
