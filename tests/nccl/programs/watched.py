"""Two ranks whose NCCL is none: rank 0 waits by what CuPy would, rank 1 goes wrong; see `main`.

``python watched.py FAULT``.  A collective ends in an abort alone.  What waits for it is a thread's
event, as a wait of CuPy's it lets other threads run.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

import ncclkv
from ncclkv.comm.nccl.communicator import NcclCommunicator
from ncclkv.comm.nccl.watcher import WATCHER
from ncclkv.errors import KVStoreError

FAULT = sys.argv[1]


class NoNccl:
    """A binding whose collectives never end by themselves."""

    name, uncaptured = "no NCCL", ""

    def __init__(self) -> None:
        self.ended = threading.Event()

    def version(self) -> int:
        return 23203

    def unique_id(self) -> bytes:
        return bytes(128)

    def create(self, size: int, unique_id: bytes, rank: int, look: object) -> object:
        return object()

    def all_reduce(self, *_: object) -> None:
        return None

    def async_error(self, comm: object) -> None:
        return None

    def abort(self, comm: object) -> None:
        self.ended.set()


def streams(binding: NoNccl) -> Any:
    """Streams whose events come when the binding has aborted."""
    return SimpleNamespace(
        communication=1,
        current=lambda: 2,
        check_device=lambda: None,
        attach=lambda: None,
        on=lambda stream: nullcontext(),
        record=lambda stream: SimpleNamespace(done=binding.ended.is_set),
        wait=lambda stream, event: None,
        close=lambda: None,
    )


def device_array() -> Any:
    """Memory of the host in an array of CuPy's."""
    import cupy

    space = np.zeros(4, np.float32)
    memory = cupy.cuda.UnownedMemory(space.ctypes.data, space.nbytes, space, 0)
    return cupy.ndarray(4, np.float32, cupy.cuda.MemoryPointer(memory, 0))


def main() -> None:
    peers = ncclkv.comm.world()
    binding: Any = NoNccl()
    comm = NcclCommunicator(peers, binding, streams(binding), peers.kernels, watcher=WATCHER)
    peers.control.barrier()
    array = device_array()
    comm.allreduce(array, array)
    Path(os.environ["MARK"]).touch()
    if comm.rank == 1:
        if FAULT == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if FAULT == "leaves":
            comm.abort("had enough")
        time.sleep(60)
    # Here a program is in ``array.get()``.
    assert binding.ended.wait(30), "nothing ended the wait"
    try:
        comm.follow()
    except KVStoreError as error:
        print(f"rank 0 is told: {type(error).__name__}: {error}", flush=True)
        raise
    print("rank 0 is told nothing", flush=True)


main()
