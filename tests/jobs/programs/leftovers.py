"""Jobs that leave files or processes: ``python leftovers.py CASE``.

Each rank first prints the files that MPI has made for it, and then exits as its case demands.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np

import ncclkv

CASE = sys.argv[1]

kv = ncclkv.create("dist_sync")
kv.init("w", np.zeros(3))
kv.push("w", np.ones(3))
kv.pull("w")

maps = Path("/proc/self/maps").read_text().splitlines()
files = {line.split()[-1] for line in maps if "/dev/shm/mpich_shm_" in line}
parent = Path("/proc") / str(os.getppid())
launcher = Path("/proc") / (parent / "stat").read_text().rpartition(")")[2].split()[1]
for descriptor in (launcher / "fd").iterdir():
    with suppress(FileNotFoundError):  # the launcher closes files at any time
        target = os.readlink(descriptor)
        if "hydra_hwloc_xmlfile_" in target:
            files.add(target)
sys.stdout.write("".join(f"made {name}\n" for name in sorted(files)))
sys.stdout.flush()
kv.barrier()

if CASE == "kill" and kv.rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
if CASE == "kill-all":
    os.kill(os.getpid(), signal.SIGSEGV)
if CASE == "waits":
    time.sleep(60)
if CASE == "daemon":
    subprocess.Popen(
        ["sh", "-c", "sleep 61 & exec sleep 62"],
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
kv.barrier()
