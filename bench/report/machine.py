"""Machine, versions and environment settings that a result depends on."""

from __future__ import annotations

import os
import platform
import socket
import subprocess
from collections.abc import Mapping
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

import ncclkv
from bench.job import Job
from bench.memory import available, processor
from ncclkv.kernels.host import compiled

PREFIXES = (
    "NCCL", "CUDA_VISIBLE", "OMPI_", "PRTE_", "PMIX_MCA", "MPICH_", "MPIR_CVAR", "FI_", "UCX_",
    "GLOO_", "OMP_", "OPENBLAS_", "MKL_", "MALLOC_", "PYTHONMALLOC", "SLURM_J", "SLURM_N",
)  # fmt: skip
"""Prefixes of settings that can change a speed; no others are written down."""

SECRETS = ("KEY", "TOKEN", "SECRET", "PASS")

PACKAGES = ("numpy", "mpi4py", "mpich", "torch", "cupy-cuda12x", "cupy-cuda13x",
            "nvidia-nccl-cu12", "nvidia-nccl-cu13")  # fmt: skip


def settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of the environment that can change a speed."""
    return {
        name: value
        for name, value in sorted(environment.items())
        if name.startswith(PREFIXES) and not any(secret in name for secret in SECRETS)
    }


def versions() -> dict[str, str]:
    """Return the versions of Python and of installed packages."""
    found = {"python": platform.python_version(), "ncclkv": ncclkv.__version__}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def describe(job: Job) -> dict[str, Any]:
    """Describe machine and versions; collective."""
    here = socket.gethostname()
    places = job.comm.control.allgather((here, os.sched_getaffinity(0)), "hosts")
    devices = job.comm.control.allgather(job.memory.device(), "devices")
    return {
        "versions": versions(),
        "commit": _commit(),
        "date": datetime.now(timezone.utc).date().isoformat(),
        "ranks": job.comm.size,
        "transport": job.comm.name,
        "host_kernels": compiled.kinds(),
        "machine": {
            "system": f"{platform.system()} {platform.release()}",
            "processor": processor(),
            # Intel MPI gives each rank cores of its own.
            "cores": len(set().union(*(cores for host, cores in places if host == here))),
            "available_bytes": available(),
            "nodes": len({host for host, _ in places}),
            "devices": devices,
        },
        "environment": settings(os.environ),
    }


def place(record: Mapping[str, Any]) -> str:
    """Return ranks and machine of a record in a few words."""
    machine, ranks = record["machine"], record["ranks"]
    cores = machine["cores"]
    where = f"{cores} core{'s' * (cores != 1)} of {machine['processor']}"
    if record["options"]["gpu"]:
        where = f"GPUs ({machine['devices'][0].rpartition('] ')[2]})"
    if machine["nodes"] > 1:
        where = f"{machine['nodes']} nodes, each with {where}"
    return f"{ranks} rank{'s' * (ranks != 1)} on {where}"


def cores() -> int:
    """Return the count of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def memory(job: Job) -> str:
    """Describe the highest memory of any rank so far, and the shared part; collective."""
    mine = _status("VmHWM"), _status("RssShmem")
    peaks, shared = zip(*job.comm.control.allgather(mine, "memory"), strict=True)
    return (
        f"peak memory so far {max(peaks) / 2**20:.0f} MiB a rank, "
        f"of it shared now {max(shared) / 2**20:.0f} MiB"
    )


def _status(name: str) -> int:
    """Return a size in bytes from ``/proc/self/status``."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return 0


def _commit() -> str:
    """Return the commit that is measured, from COMMIT or git."""
    if told := os.environ.get("COMMIT"):
        return told
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return done.stdout.strip()
