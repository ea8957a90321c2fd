"""Communicators whose NCCL is none pass their deadline, one after the other; rank 0 counts.

It prints how many descriptors and threads its process has after each.
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
    """A communicator that times out and is left, as a broken store's close does."""
    peers = ncclkv.comm.world(0.3)
    binding: Any = NoNccl()
    comm = NcclCommunicator(peers, binding, streams(binding), peers.kernels)
    peers.control.barrier()
    array = device_array()
    comm.allreduce(array, array)
    try:
        comm.synchronize()
    except CommError as error:  # the deadline, or the other rank left at its own
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
