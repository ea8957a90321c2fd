"""Print the versions that a result on a GPU depends on; exit with 1 if there is no GPU."""

from __future__ import annotations

import sys
from pathlib import Path

import cupy
import numpy as np
from cupy.cuda import nccl, runtime

from bench.report.machine import versions
from ncclkv.kernels.host import compiled
from tests.nccl import gpu


def mapped(name: str) -> list[str]:
    """Return the mapped files of a library."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return sorted({line.split()[-1] for line in lines if name in line})


def mpi() -> str:
    """Return the MPI library, or the reason why there is none."""
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        return f"none: {error}"
    return MPI.Get_library_version().strip("\0").splitlines()[0]


def main() -> int:
    print(*(f"{name} {version}" for name, version in versions().items()), sep="\n")
    print("NumPy", np.__version__, "CuPy", cupy.__version__, "MPI", mpi())
    print("host kernels:", compiled.kinds())
    print("NCCL", nccl.get_version(), "built against", nccl.get_build_version(), *mapped("libnccl"))
    if lacking := gpu.missing():
        print(lacking)
        return 1
    print("CUDA", runtime.runtimeGetVersion(), "driver", runtime.driverGetVersion())
    for device in range(runtime.getDeviceCount()):
        found = runtime.getDeviceProperties(device)
        print(
            f"GPU {device}: {found['name'].decode()}, sm_{found['major']}{found['minor']}, "
            f"{found['multiProcessorCount']} multiprocessors, {found['totalGlobalMem'] / 2**30:.1f}"
            f" GiB, L2 {found['l2CacheSize'] / 2**20:.0f} MiB"
        )
    return 0


sys.exit(main())
