"""Communicators with a fake NCCL that time out one after another; rank 0 counts.

Rank 0 prints the count of its descriptors and threads after each communicator.
"""

from __future__ import annotations

import gc
import os
import threading
from typing import Any

from no_nccl import NoNccl, device_array, streams

import ncclkv
from ncclkv.comm.nccl.communicator import NcclCommunicator
from ncclkv.errors import CommError

ROUNDS = 4


def one() -> None:
    """Make a communicator that times out, and abandon it as the close of a broken store does."""
    peers = ncclkv.comm.world(0.3)
    binding: Any = NoNccl()
    comm = NcclCommunicator(peers, binding, streams(binding), peers.kernels)
    peers.control.barrier()
    array = device_array()
    comm.allreduce(array, array)
    try:
        comm.synchronize()
    except CommError as error:  # the deadline, or the exit of the other rank at its own
        comm.abort(str(error))
    else:
        raise AssertionError("it did not time out")


def main() -> None:
    from mpi4py import MPI

    counts = []
    for _ in range(ROUNDS):
        one()
        gc.collect()
        counts.append((len(os.listdir("/proc/self/fd")), threading.active_count()))
        MPI.COMM_WORLD.Barrier()
    if MPI.COMM_WORLD.rank == 0:
        print("counts:", *counts, sep="\n", flush=True)


main()
