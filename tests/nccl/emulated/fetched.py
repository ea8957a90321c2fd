"""Downloads of the layer from package registries: CuPy's source, CUDA's headers, and Cython.

Each is fetched once into a folder, and kept when sources of the project change.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.nccl.emulated.missing import Missing

LIMIT = 400.0
"""Seconds that one call of pip may take."""


@dataclass(frozen=True)
class Release:
    """The source package of one version of CuPy, and the Cython that builds it."""

    sha256: str
    cython: str


RELEASES = {
    "14.2.0": Release(
        "cfed725e612178cfbdbf62f4a3a598b60edecbbca718c0d4580c21a16ae4a62c", "cython>=3.2,<3.3"
    ),
}
HEADERS = {
    12: (
        "nvidia-cuda-runtime-cu12==12.9.*",
        "nvidia-cuda-nvcc-cu12==12.9.*",
        "nvidia-cuda-cccl-cu12==12.9.*",
    ),
    13: ("nvidia-cuda-runtime==13.0.*", "nvidia-cuda-crt==13.0.*", "nvidia-cuda-cccl==13.0.*"),
}
WITHOUT_CUDA = ({"CUPY_INSTALL_USE_STUB": "1"}, {"READTHEDOCS": "True"})
"""Variables that prepare CuPy's source package without CUDA; the first that works is used."""


@dataclass(frozen=True)
class Installed:
    """The wheels that the layer is built for.

    Attributes
    ----------
    cupy : str
        The version of CuPy.
    cuda : int
        The major version of its CUDA.
    nccl : pathlib.Path
        The folder with nccl.h.
    """

    cupy: str
    cuda: int
    nccl: Path


def installed() -> Installed:
    """Return the wheels in this environment."""
    for cuda in HEADERS:
        try:
            version = importlib.metadata.version(f"cupy-cuda{cuda}x")
            nccl = importlib.metadata.distribution(f"nvidia-nccl-cu{cuda}")
        except importlib.metadata.PackageNotFoundError:
            continue
        return Installed(version, cuda, Path(str(nccl.locate_file("nvidia/nccl/include"))))
    raise Missing(
        "CuPy and NCCL are not installed from wheels: pip install 'ncclkv[cuda12]' or [cuda13]"
    )


def source_of_cupy(version: str, folder: Path) -> Path:
    """Return CuPy's source of a version; fetch it if it is missing."""
    if version not in RELEASES:
        raise Missing(
            f"CuPy {version} is installed, and the checksum of its source is known for "
            f"{', '.join(RELEASES)} alone (fetched.py)"
        )
    return _once(folder / f"cupy-{version}", lambda target: _fetch_source(version, target))


def _fetch_source(version: str, target: Path) -> None:
    archive = target / f"cupy-{version}.tar.gz"
    arguments = ("download", "--no-binary", "cupy", "--no-deps", "-d", str(target))
    for index, variables in enumerate(WITHOUT_CUDA):
        try:
            pip(*arguments, f"cupy=={version}", variables=variables)
            break
        except Missing:
            if index == len(WITHOUT_CUDA) - 1:
                raise
    check(archive, RELEASES[version].sha256)
    with tarfile.open(archive) as file:
        parts = (f"cupy-{version}/cupy_backends/", f"cupy-{version}/cupy/")
        for member in file.getmembers():
            if member.isfile() and member.name.startswith(parts):
                relative = member.name.partition("/")[2]
                path = target / relative
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(file.extractfile(member).read())  # type: ignore[union-attr]


def check(path: Path, sha256: str) -> None:
    """Raise if a file has another checksum."""
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != sha256:
        raise Missing(f"{path.name} has the SHA-256 {found}, and it should have {sha256}")


def headers(cuda: int, folder: Path) -> list[Path]:
    """Return the folders of CUDA's headers; fetch them if they are missing."""
    root = _once(folder / f"cuda{cuda}", lambda target: _fetch_headers(cuda, target))
    return sorted(path for path in root.glob("nvidia/*/include") if path.is_dir())


def _fetch_headers(cuda: int, target: Path) -> None:
    pip("install", "--no-deps", "--target", str(target), *HEADERS[cuda])
    for path in target.glob("nvidia/*/*"):
        # The vendor's libraries and programs are not used, so they are removed.
        if path.is_dir() and path.name != "include":
            shutil.rmtree(path)


def cython(version: str, folder: Path) -> Path:
    """Return a folder with the Cython for a version of CuPy."""
    wanted = RELEASES[version].cython
    name = f"cython-{version}-{sys.implementation.cache_tag}"
    return _once(
        folder / name, lambda target: pip("install", "--no-deps", "--target", str(target), wanted)
    )


def _once(target: Path, fetch: Callable[[Path], None]) -> Path:
    """Return a folder; its content is fetched into another, which is then renamed."""
    if not target.is_dir():
        unfinished = target.with_name(f".{target.name}")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        fetch(unfinished)
        unfinished.rename(target)
    return target


def pip(*arguments: str, variables: Mapping[str, str] | None = None) -> None:
    """Run pip; on failure raise with the last line of its errors."""
    command: Sequence[str] = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")
    environment = {**os.environ, **(variables or {})}
    try:
        ended = subprocess.run(
            [*command, *arguments],
            env=environment,
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise Missing(f"pip did not answer in {LIMIT:g} s: {' '.join(arguments)}") from None
    if ended.returncode:
        errors = [line for line in ended.stderr.splitlines() if line.startswith("ERROR")]
        last = (errors or ended.stderr.splitlines() or ["no word why"])[-1]
        raise Missing(f"pip cannot fetch {arguments[-1]}: {last}")
