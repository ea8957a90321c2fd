"""Two ranks with a fake NCCL: rank 0 waits as CuPy does, rank 1 fails; see `main`.

``python watched.py FAULT``. Only an abort ends a collective. A program waits for a thread's event,
which releases the interpreter as a wait of CuPy does.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from no_nccl import NoNccl, device_array, streams

import ncclkv
from ncclkv.comm.nccl.communicator import NcclCommunicator
from ncclkv.comm.nccl.watcher import WATCHER
from ncclkv.errors import KVStoreError

FAULT = sys.argv[1]


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
    # A program is inside ``array.get()`` here.
    assert binding.ended.wait(30), "nothing ended the wait"
    try:
        comm.sync_stream()
    except KVStoreError as error:
        print(f"rank 0 is told: {type(error).__name__}: {error}", flush=True)
        raise
    print("rank 0 is told nothing", flush=True)


main()
