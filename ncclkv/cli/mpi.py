"""Search for the mpirun of the MPI that the ranks' mpi4py loads.

An mpirun of another MPI would start as many jobs of one rank.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ncclkv.errors import LaunchError

_NAMES = ("mpirun", "mpiexec", "mpiexec.hydra", "mpirun.mpich", "mpirun.openmpi")

_ASK = """
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

_ASK_SECONDS = 60.0

# Part of a library's name, and words in the version text of its mpirun.
_FAMILIES = {
    "Open MPI": ("Open MPI", "OpenRTE", "prte"),
    "Intel": ("Intel",),
    "MPICH": ("HYDRA",),
    "MVAPICH": ("HYDRA", "mpirun_rsh"),
}


@dataclass(frozen=True)
class Library:
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

    @property
    def family(self) -> str:
        """Return its key in `_FAMILIES`; empty for other libraries."""
        return next((family for family in _FAMILIES if family in self.name), "")


@dataclass(frozen=True)
class Mpirun:
    """An mpirun that starts jobs of the MPI that mpi4py loads.

    Attributes
    ----------
    path : str
    said : str
        Its version text.
    """

    path: str
    said: str

    @property
    def is_open_mpi(self) -> bool:
        """Return whether it is Open MPI's."""
        return any(word in self.said for word in _FAMILIES["Open MPI"])

    @property
    def is_hydra(self) -> bool:
        """Return whether it is MPICH's, or that of an MPI derived from it."""
        return "HYDRA" in self.said


def find(command: Sequence[str]) -> Mpirun:
    """Return the right mpirun.

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
    library = ask(python)
    passed = []
    for path in _candidates(library, Path(python).parent):
        said = version(path)
        if fits(library, said):
            return Mpirun(str(path), said)
        passed.append(f"{path} ({(said or 'says nothing').split(chr(10))[0].strip()})")
    others = f"; there is {', '.join(passed)}, which is of another MPI" if passed else ""
    raise LaunchError(
        f"there is no mpirun of {library.name}, the MPI that mpi4py of {python} loads{others}. "
        f"Load your site's MPI (module load ...), or: {python} -m pip install 'ncclkv[mpi]'"
    )


def python_of(command: Sequence[str]) -> str:
    """Return the Python that a command begins with, or else this process's."""
    named = Path(command[0]).name.startswith("python")
    return (shutil.which(command[0]) if named else None) or sys.executable


def ask(python: str) -> Library:
    """Return the MPI that a Python loads; a process of its own keeps MPI unstarted here."""
    try:
        run = subprocess.run(
            [python, "-c", _ASK],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_ASK_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise LaunchError(
            f"{python} has not imported mpi4py in {_ASK_SECONDS:g} s; try: "
            f"{python} -c 'from mpi4py import MPI'"
        ) from error
    if run.returncode:
        last = (run.stderr.strip().splitlines() or ["it says nothing"])[-1]
        raise LaunchError(
            f"{python} cannot load MPI, which a job of several ranks needs ({last}); load your "
            f"site's MPI and: {python} -m pip install mpi4py; or, for an MPI of its own: "
            f"{python} -m pip install 'ncclkv[mpi]'"
        )
    name, *paths = run.stdout.splitlines()
    return Library(" ".join(name.split()), Path(paths[0]) if paths else None)


def version(mpirun: Path) -> str:
    """Return the version text of an mpirun; empty without one."""
    try:
        run = subprocess.run(
            [mpirun, "--version"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_ASK_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return run.stdout


def fits(library: Library, said: str) -> bool:
    """Return whether the mpirun with version text `said` starts jobs of `library`.

    Examples
    --------
    >>> fits(Library("MPICH Version: 4.2", None), "HYDRA build details:")
    True
    >>> fits(Library("Open MPI v5.0.3", None), "HYDRA build details:")
    False
    """
    if not library.family:
        return bool(said)
    return any(word in said for word in _FAMILIES[library.family])


def _candidates(library: Library, beside: Path) -> Iterator[Path]:
    """Yield possible mpiruns once each: beside the library, beside Python, on PATH."""
    folders = [] if library.path is None else [each / "bin" for each in library.path.parents]
    places = [folder / name for folder in (*folders, beside) for name in _NAMES]
    found = [str(path) for path in places if path.is_file()]
    found += [path for name in _NAMES if (path := shutil.which(name)) is not None]
    return map(Path, dict.fromkeys(found))
