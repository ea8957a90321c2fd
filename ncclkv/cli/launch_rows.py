"""Rows of `ncclkv doctor` about the start of a job: MPI, mpirun, ``/dev/shm``, the ranks."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from ncclkv.cli import mpirun_search
from ncclkv.cli.leftovers import RANK_BYTES, SHARED
from ncclkv.comm.diagnosis.reports import format_ranks
from ncclkv.comm.host.alone import library_name
from ncclkv.doctor.rows import BLOCKS, WARNS, RankRows, Row, refused
from ncclkv.errors import LaunchError

_MIB = 1 << 20


def rows(ranks: int, here: int) -> Iterator[Row]:
    """Yield the rows of a rank, in a job of `ranks` ranks with `here` ranks on this host."""
    yield from library(ranks)
    yield shared_memory(here)


def library(ranks: int) -> Iterator[Row]:
    """Yield the row of the MPI that this Python loads, which a job of one rank does not need."""
    try:
        found = mpirun_search.find_library(sys.executable)
    except LaunchError as error:
        row = refused("MPI library", error, BLOCKS if ranks > 1 else WARNS, "none")
        yield row._replace(used="one rank needs none" if ranks == 1 else "")
        return
    yield Row("MPI library", library_name(found.name), str(found.path or ""))
    if ranks == 1:  # no launcher has started this process: the next job may be mpirun's
        yield from mpirun_on_path(found)


def mpirun(command: Sequence[str]) -> Iterator[Row]:
    """Yield the row of the mpirun that starts the command, and of another one on ``PATH``."""
    try:
        library = mpirun_search.find_library(mpirun_search.python_of(command))
    except LaunchError:
        why, mend = "mpi4py loads no MPI", "see the row of the MPI library"
        yield Row("mpirun", "not looked for", "", why, mend, BLOCKS)
        return
    try:
        found = mpirun_search.find_mpirun(command)
    except LaunchError as error:
        yield refused("mpirun", error, found="none of the MPI library")
        return
    yield Row("mpirun", _shown(found.version), found.path)
    yield from mpirun_on_path(library)


def mpirun_on_path(library: mpirun_search.MpiLibrary) -> Iterator[Row]:
    """Yield a row if a user who types ``mpirun`` would start that of another MPI."""
    path = shutil.which("mpirun")
    version = mpirun_search.version_of(Path(path)) if path else ""
    if path is None or not version or mpirun_search.starts_jobs_of(library, version):
        return
    why = f"it starts no job of {library_name(library.name)}, the MPI that mpi4py loads"
    mend = "start jobs by ncclkv run, which finds the right mpirun"
    yield Row("mpirun on PATH", _shown(version), path, why, mend, WARNS)


def _shown(version: str) -> str:
    """Return the name and the release in the version text of an mpirun."""
    lines = [line.strip() for line in version.splitlines() if line.strip()]
    release = next((line.split()[-1] for line in lines if line.startswith("Version:")), "")
    return f"HYDRA {release}" if "HYDRA" in version else lines[0]


def shared_memory(ranks_here: int) -> Row:
    """Return the row of ``/dev/shm``, in which MPI makes files for its messages."""
    thing, needed = str(SHARED), ranks_here * RANK_BYTES
    used = f"up to {needed // _MIB} MiB by {ranks_here} rank{'s' * (ranks_here > 1)} of a host"
    try:
        whole, _, free = shutil.disk_usage(SHARED)
    except OSError as error:
        mend = f"mount -t tmpfs tmpfs {SHARED}"
        return Row(thing, "none", used, str(error), mend, BLOCKS if ranks_here > 1 else WARNS)
    found = f"{free // _MIB:,} MiB free of {whole // _MIB:,}"
    if ranks_here == 1:
        return Row(thing, found, "not used by one rank")
    if free >= needed:
        return Row(thing, found, used)
    why = "without this memory ranks end by SIGBUS or SIGSEGV"
    mend = f"remove files from {SHARED}, or make it larger: docker run --shm-size=1g, or mount -o "
    return Row(thing, found, used, why, f"{mend}remount,size=1g {SHARED}", WARNS)


def ranks(size: int, reports: Sequence[RankRows], failure: str = "") -> Row:
    """Return the row of the ranks that have reported, by host.

    Parameters
    ----------
    size : int
        Count of ranks of the job.
    reports : sequence of RankRows
    failure : str
        Description of the job's end, if it failed.
    """
    hosts: dict[str, list[int]] = {}
    for report in reports:
        hosts.setdefault(report.host, []).append(report.rank)
    used = "; ".join(f"{format_ranks(sorted(at))} on {host}" for host, at in hosts.items())
    missing = sorted({*range(size)} - {report.rank for report in reports})
    if not missing and not failure:
        return Row("ranks", str(size), used)
    lost = f"no report of {format_ranks(missing)}" if missing else ""
    why = "; ".join(filter(None, (lost, failure)))
    mend = "the other rows that block come first; if there are several hosts: ssh HOST true"
    return Row("ranks", f"{size - len(missing)} of {size}", used, why, mend, BLOCKS)
