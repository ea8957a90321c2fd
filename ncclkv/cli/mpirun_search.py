"""Search for the mpirun of the MPI that the ranks' mpi4py loads.

An mpirun of another MPI would start as many jobs of one rank.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from ncclkv.errors import LaunchError

_NAMES = ("mpirun", "mpiexec", "mpiexec.hydra", "mpirun.mpich", "mpirun.openmpi")

_PROGRAM = """
import mpi4py
mpi4py.rc.initialize = False
from mpi4py import MPI
print(MPI.Get_library_version().strip(chr(0)).splitlines()[0])
for line in open("/proc/self/maps"):
    name = line.split("/")[-1].strip()
    if name.startswith(("libmpi.so", "libmpi_abi.so", "libmpich.so")):
        print("/" + line.strip().split("/", 1)[1])
"""
"""Program that loads MPI without starting it, and prints its name and the path of its library."""

_SECONDS = 60.0

# Part of a library's name, and words in the version text of its mpirun.
_FAMILIES = {
    "Open MPI": ("Open MPI", "OpenRTE", "prte"),
    "Intel": ("Intel",),
    "MPICH": ("HYDRA",),
    "MVAPICH": ("HYDRA", "mpirun_rsh"),
}


class MpiLibrary(NamedTuple):
    """The MPI that mpi4py loads.

    Attributes
    ----------
    name : str
        First line of its version text.
    path : Path or None
        Path of its shared library, where found.
    """

    name: str
    path: Path | None


class Mpirun(NamedTuple):
    """An mpirun that starts jobs of the MPI that mpi4py loads.

    Attributes
    ----------
    path : str
    version : str
        Its version text.
    """

    path: str
    version: str

    @property
    def is_open_mpi(self) -> bool:
        """Return whether it is Open MPI's."""
        return any(word in self.version for word in _FAMILIES["Open MPI"])

    @property
    def is_hydra(self) -> bool:
        """Return whether it is MPICH's, or that of an MPI derived from it."""
        return "HYDRA" in self.version


def find_mpirun(command: Sequence[str]) -> Mpirun:
    """Return the mpirun of the MPI that the ranks' mpi4py loads.

    Parameters
    ----------
    command : sequence of str
        Command of each rank; its Python, where it begins with one, loads mpi4py for the search.

    Raises
    ------
    LaunchError
        When there is no mpi4py, no MPI, or no mpirun of the same MPI.
    """
    python = python_of(command)
    library = find_library(python)
    others = []
    for path in _candidates(library, Path(python).parent):
        version = version_of(path)
        if starts_jobs_of(library, version):
            return Mpirun(str(path), version)
        others.append(f"{path} ({(version or 'no version').split(chr(10))[0].strip()})")
    found = f"; there is {', '.join(others)}, which is of another MPI" if others else ""
    raise LaunchError(
        f"there is no mpirun of {library.name}, the MPI that mpi4py of {python} loads{found}. "
        f"Load your site's MPI (module load ...), or: {python} -m pip install 'ncclkv[mpi]'"
    )


def python_of(command: Sequence[str]) -> str:
    """Return the Python that a command begins with, or else this process's."""
    named = Path(command[0]).name.startswith("python")
    return (shutil.which(command[0]) if named else None) or sys.executable


def find_library(python: str) -> MpiLibrary:
    """Return the MPI that a Python loads, in a process of its own: MPI is not loaded here."""
    try:
        run = _run(python, "-c", _PROGRAM)
    except subprocess.TimeoutExpired as error:
        raise LaunchError(
            f"{python} has not imported mpi4py in {_SECONDS:g} s; try: "
            f"{python} -c 'from mpi4py import MPI'"
        ) from error
    if run.returncode:
        last = (run.stderr.strip().splitlines() or ["no message"])[-1]
        raise LaunchError(
            f"{python} cannot load MPI, which a job of several ranks needs ({last}); load your "
            f"site's MPI and: {python} -m pip install mpi4py; or, for an MPI of its own: "
            f"{python} -m pip install 'ncclkv[mpi]'"
        )
    name, *paths = run.stdout.splitlines()
    return MpiLibrary(" ".join(name.split()), Path(paths[0]) if paths else None)


def version_of(mpirun: Path) -> str:
    """Return the version text of an mpirun; empty without one."""
    try:
        run = _run(str(mpirun), "--version")
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return run.stdout + run.stderr


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, without input, and return its output."""
    return subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_SECONDS
    )


def starts_jobs_of(library: MpiLibrary, version: str) -> bool:
    """Return whether the mpirun with this version text starts jobs of `library`.

    Examples
    --------
    >>> starts_jobs_of(MpiLibrary("MPICH Version: 4.2", None), "HYDRA build details:")
    True
    >>> starts_jobs_of(MpiLibrary("Open MPI v5.0.3", None), "HYDRA build details:")
    False
    """
    words = next((words for family, words in _FAMILIES.items() if family in library.name), None)
    if words is None:
        return bool(version)
    return any(word in version for word in words)


def _candidates(library: MpiLibrary, beside: Path) -> Iterator[Path]:
    """Yield possible mpiruns once each: beside the library, beside Python, on PATH."""
    folders = [] if library.path is None else [each / "bin" for each in library.path.parents]
    places = [folder / name for folder in (*folders, beside) for name in _NAMES]
    found = [str(path) for path in places if path.is_file()]
    found += [path for name in _NAMES if (path := shutil.which(name)) is not None]
    return map(Path, dict.fromkeys(found))
